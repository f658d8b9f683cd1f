"""npu_transpose against the definition, element by element."""

import itertools

import pytest
import torch

import torch_npu
from tests.ops.support import make


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int64, torch.bool])
@pytest.mark.parametrize(
    "shape,perm",
    [
        ((2, 3, 5), (2, 0, 1)),
        ((4, 3), (1, 0)),
        ((3,), (0,)),
        ((), ()),
        ((2, 3, 5), (0, -1, 1)),
        ((0, 2), (1, 0)),
    ],
)
@pytest.mark.parametrize("contiguous", [True, False])
def test_values(dtype, shape, perm, contiguous):
    x = make(*shape, dtype=dtype, low=0, high=9)
    out = torch_npu.npu_transpose(x, perm, contiguous)
    axes = [p % max(len(shape), 1) for p in perm]
    assert out.shape == tuple(shape[a] for a in axes) and out.is_contiguous() and out.dtype == dtype
    for place in itertools.product(*map(range, shape)):
        assert out[tuple(place[a] for a in axes)] == x[place]


def test_transposed_input_and_out():
    x = make(4, 3).t()
    assert torch.equal(torch_npu.npu_transpose(x, [1, 0], False).cpu(), x.cpu().t())
    out = torch.empty(0, device=x.device)
    assert torch_npu.npu_transpose(x, [1, 0], out=out) is out and torch.equal(
        out.cpu(), x.cpu().t()
    )


@pytest.mark.parametrize("perm", [[0], [0, 0], [0, 2], [1, -1]])
def test_bad_perm(perm):
    with pytest.raises(
        RuntimeError, match="npu_transpose: argument 'perm' must be a permutation of 2 dimensions"
    ):
        torch_npu.npu_transpose(make(2, 3), perm)


def test_gaps():
    x = make(4, 6)[:, ::2]
    assert torch.equal(torch_npu.npu_transpose(x, [1, 0]).cpu(), x.cpu().t())
    with pytest.raises(
        RuntimeError, match="argument 'require_contiguous' must be True for a tensor with gaps"
    ):
        torch_npu.npu_transpose(x, [1, 0], False)


def test_out_of_another_dtype():
    out = torch.empty(3, 2, dtype=torch.float16, device=make(1).device)
    with pytest.raises(
        RuntimeError, match="argument 'out' must be of dtype torch.float32.*float16"
    ):
        torch_npu.npu_transpose(make(2, 3), [1, 0], out=out)
