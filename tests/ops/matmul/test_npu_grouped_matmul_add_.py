"""npu_grouped_matmul_add_ and npu_grouped_matmul_add against fp64, group by group."""

import pytest
import torch

import torch_npu
from tests.ops.families import as_chip
from tests.ops.support import make


def reference(self, x, weight, ends):
    y = self.cpu().double().clone().reshape(len(ends), x.shape[1], weight.shape[1])
    start = 0
    for g, end in enumerate(ends):
        y[g] += x.cpu().double()[start:end].t() @ weight.cpu().double()[start:end]
        start = end
    return y.reshape(self.shape)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("shape", [(15, 7), (3, 5, 7), (105,)])
def test_both_forms(dtype, kind, shape):
    x, weight = make(40, 5, dtype=dtype), make(40, 7, dtype=dtype, seed=2)
    self = make(*shape)
    ends = (10, 10, 38)
    groups = torch.tensor(ends if kind == 0 else (10, 0, 28)).npu()
    before, want = self.clone(), reference(self, x, weight, ends)
    out = torch_npu.npu_grouped_matmul_add(self, x, weight, groups, group_list_type=kind)
    assert torch.equal(self, before)
    torch.testing.assert_close(out.cpu().double(), want, rtol=1e-5, atol=1e-5)
    version = self._version
    torch_npu.npu_grouped_matmul_add_(self, x, weight, groups, group_list_type=kind)
    assert torch.equal(self, out) and self._version > version


def test_long_rows_and_the_shape_on_ascend950():
    """M and N have no limit; Ascend950 asks for (G, M, N)."""
    x, weight = make(2, 1, dtype=torch.float16), make(2, 65536, dtype=torch.float16, seed=2)
    self, groups = make(1, 1, 65536), torch.tensor([2]).npu()
    want = reference(self, x, weight, (2,))
    torch_npu.npu_grouped_matmul_add_(self, x, weight, groups)
    torch.testing.assert_close(self.cpu().double(), want, rtol=1e-5, atol=1e-5)
    with (
        as_chip("Ascend950"),
        pytest.raises(RuntimeError, match=r"'self' must be of shape \(1, 1, 65536\).*\(1, 65536\)"),
    ):
        torch_npu.npu_grouped_matmul_add_(self[0], x, weight, groups)


def test_strides():
    x, weight, self = (
        make(5, 12, dtype=torch.float16).t(),
        make(12, 7, dtype=torch.float16),
        make(1, 5, 7),
    )
    want = reference(self, x, weight, (12,))
    torch_npu.npu_grouped_matmul_add_(self, x, weight, torch.tensor([12]).npu())
    torch.testing.assert_close(self.cpu().double(), want, rtol=1e-5, atol=1e-5)


def test_bad_arguments():
    self, x, weight = (
        make(2, 3, 4),
        make(9, 3, dtype=torch.float16),
        make(9, 4, dtype=torch.float16),
    )
    groups = torch.tensor([4, 9]).npu()
    for args, options, text in [
        ((self.half(), x, weight, groups), {}, "'self' must be of dtype torch.float32"),
        (
            (self[:1], x, weight, groups),
            {},
            r"'self' must be of 24 elements, but received \(1, 3, 4\)",
        ),
        ((self, x.float(), weight, groups), {}, "'x' must be of dtype torch.float16 or"),
        ((self, x, weight[:8], groups), {}, r"'weight' must be of shape \(9, \*\)"),
        ((self, x, weight, groups.int()), {}, "'group_list' must be of dtype torch.int64"),
        ((self, x, weight, groups), {"transpose_x": False}, "'transpose_x' must be True"),
        ((self, x, weight, groups), {"group_type": 0}, "'group_type' must be 2, but received 0"),
        ((self, x, weight, groups + 1), {}, "'group_list' must be such that the groups cover 9"),
    ]:
        with pytest.raises(RuntimeError, match="npu_grouped_matmul_add_?: argument " + text):
            torch_npu.npu_grouped_matmul_add_(*args, **options)
