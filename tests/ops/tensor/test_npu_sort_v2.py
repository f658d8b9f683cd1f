"""npu_sort_v2 against Python's sorted."""

import pytest
import torch

import torch_npu
from tests.ops.support import make


def reference(x, dim, descending):
    lines = x.movedim(dim, -1)
    flat = lines.reshape(-1, lines.shape[-1]).tolist() if x.numel() else []
    done = [sorted(line, reverse=descending) for line in flat]
    return torch.tensor(done, dtype=x.dtype).reshape(lines.shape).movedim(-1, dim)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int32, torch.uint8]
)
@pytest.mark.parametrize(
    "shape,dim", [((3, 7), -1), ((3, 7), 0), ((2, 3, 4), 1), ((9,), 0), ((0, 3), -1), ((1, 1), 1)]
)
@pytest.mark.parametrize("descending", [False, True])
def test_values(dtype, shape, dim, descending):
    x = make(*shape, dtype=dtype, low=0, high=5)
    out = torch_npu.npu_sort_v2(x, dim, descending)
    assert torch.equal(out.cpu(), reference(x.cpu(), dim, descending))
    assert out.dtype == dtype and out.is_contiguous()


def test_defaults_non_contiguous_and_out():
    x = make(5, 4).t()
    assert torch.equal(torch_npu.npu_sort_v2(x).cpu(), reference(x.cpu(), -1, False))
    out = torch.empty(0, device=x.device)
    assert torch_npu.npu_sort_v2(x, 0, True, out=out) is out
    assert torch.equal(out.cpu(), reference(x.cpu(), 0, True))


@pytest.mark.parametrize("dim", [2, -3])
def test_bad_dim(dim):
    with pytest.raises(
        RuntimeError,
        match=rf"npu_sort_v2: argument 'dim' must be within \[-2, 1\], but received {dim}",
    ):
        torch_npu.npu_sort_v2(make(2, 3), dim)


def test_out_of_another_dtype():
    out = torch.empty(3, dtype=torch.int32, device=make(1).device)
    with pytest.raises(RuntimeError, match="argument 'out' must be of dtype torch.float32.*int32"):
        torch_npu.npu_sort_v2(make(3), out=out)
