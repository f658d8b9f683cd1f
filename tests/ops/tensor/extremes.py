"""The tests of npu_max and npu_min, which differ in what is better; each operator's own file names it."""

import itertools

import pytest
import torch

import torch_npu
from tests.ops.support import gradcheck, make

CASES = [((7,), 0), ((3, 4), 0), ((3, 4), -1), ((2, 3, 4), 1), ((5, 1, 2), 1), ((0, 3), 1), ((), 0)]
DTYPES = [
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.bool,
]


def reference(x, dim, keepdim, better):
    """Values and places of the first element that no other beats, by a loop."""
    if x.dim() == 0:
        return x.clone(), torch.tensor(0)
    dim %= x.dim()
    shape = [s for i, s in enumerate(x.shape) if i != dim]
    values, places = torch.empty(shape, dtype=x.dtype), torch.empty(shape, dtype=torch.int64)
    for rest in itertools.product(*map(range, shape)):
        line = [x[rest[:dim] + (i,) + rest[dim:]].item() for i in range(x.shape[dim])]
        best = 0
        for i, value in enumerate(line):
            if better(value, line[best]):
                best = i
        values[rest], places[rest] = line[best], best
    return (values.unsqueeze(dim), places.unsqueeze(dim)) if keepdim else (values, places)


class Extremes:
    """A subclass names the operator, the comparison and a row whose best value stands twice, first at 1."""

    name: str
    better: staticmethod
    tied: list[int]

    def choose(self, *args):
        return getattr(torch_npu, self.name)(*args)

    def backward(self, *args):
        return getattr(torch_npu, f"{self.name}_backward")(*args)

    def agree(self, x, dim, keepdim=False):
        values, indices = self.choose(x, dim, keepdim)
        want = reference(x.cpu(), dim, keepdim, self.better)
        assert values.dtype == x.dtype and indices.dtype == torch.int32
        assert torch.equal(values.cpu(), want[0]) and torch.equal(indices.cpu().long(), want[1])

    @pytest.mark.parametrize("shape,dim", CASES)
    @pytest.mark.parametrize("keepdim", [False, True])
    def test_values_and_indices(self, shape, dim, keepdim):
        for dtype in DTYPES:
            x = make(*shape, dtype=dtype, low=-4 if dtype.is_signed else 0, high=4)
            self.agree(x, dim, keepdim)

    def test_ties(self):
        values, indices = self.choose(torch.tensor([self.tied, [2, 2, 2, 2]], device="npu"), 1)
        assert values.tolist() == [self.tied[1], 2] and indices.tolist() == [1, 0]

    def test_non_contiguous(self):
        self.agree(make(5, 6).t(), 0)

    @pytest.mark.parametrize("keepdim", [False, True])
    def test_gradients(self, keepdim):
        x = make(2, 3, 2, dtype=torch.float64, requires_grad=True)
        for dim in (0, 1, -1):
            gradcheck(lambda t, dim=dim: self.choose(t, dim, keepdim)[0], x)

    def test_named_backward(self):
        grad = make(2, 4)
        indices = torch.tensor([[0, 2, 1, 1], [2, 2, 0, 1]], dtype=torch.int32, device="npu")
        out = self.backward(grad, 1, indices, [2, 3, 4], False).cpu()
        for i, j, k in itertools.product(range(2), range(3), range(4)):
            assert out[i, j, k] == (grad[i, k].item() if indices[i, k] == j else 0)

    def test_bad_dim(self):
        message = rf"{self.name}.dim: argument 'dim' must be within \[-2, 1\], but received 2"
        with pytest.raises(RuntimeError, match=message):
            self.choose(make(2, 3), 2)

    def test_nothing_to_choose_from(self):
        message = r"argument 'self' must be not empty along 'dim', but received \(2, 0\)"
        with pytest.raises(RuntimeError, match=message):
            self.choose(make(2, 0), 1)

    def test_bad_gradient(self):
        indices = torch.tensor([0, 3], dtype=torch.int32, device="npu")
        message = r"'indices' must be in \[0, 3\), but received 3 at index 1"
        with pytest.raises(RuntimeError, match=message):
            self.backward(make(2), 1, indices, [2, 3], False)
        with pytest.raises(RuntimeError, match=r"'grad' must be of shape \(2, 1\).*\(2,\)"):
            self.backward(make(2), 1, indices, [2, 3], True)
