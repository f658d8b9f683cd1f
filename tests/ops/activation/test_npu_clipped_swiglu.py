"""npu_clipped_swiglu against the formula, number by number."""

import math

import pytest
import torch

import torch_npu
from tests.ops.activation._elementwise import by_number
from tests.ops.support import assert_accurate, make

DEFAULTS = {"alpha": 1.702, "limit": 7.0, "bias": 1.0}


def split(x, dim, interleaved):
    rows = math.prod(x.shape[:dim])
    flat = x.reshape(rows, math.prod(x.shape[dim:]))
    half = flat.shape[1] // 2
    return (flat[:, ::2], flat[:, 1::2]) if interleaved else (flat[:, :half], flat[:, half:])


def check(x, dim=-1, interleaved=True, group_index=None, **numbers):
    y = torch_npu.npu_clipped_swiglu(
        x, group_index=group_index, dim=dim, interleaved=interleaved, **numbers
    )
    alpha, limit, bias = (DEFAULTS | numbers).values()

    def scalar(a, b):
        a, b = min(a, limit), max(-limit, min(b, limit))
        return a / (1 + math.exp(-alpha * a)) * (b + bias)

    a, b = split(x.cpu(), dim % x.dim(), interleaved)
    want = by_number(scalar, a, b)
    c, d = a.clamp(max=limit), b.clamp(-limit, limit)
    plain = c * torch.sigmoid(alpha * c) * (d + bias)
    if group_index is not None:
        want[group_index.sum() :] = 0
        plain[group_index.sum() :] = 0
    shape = list(x.shape)
    shape[dim] //= 2
    assert y.dtype == x.dtype and y.is_contiguous()
    assert_accurate(y, want.reshape(shape), plain.reshape(shape))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("shape,dim", [((6, 16), -1), ((3, 4, 5), 1), ((4, 3, 2), 0), ((1, 2), 1)])
def test_forward(shape, dim, interleaved, dtype):
    check(make(*shape, dtype=dtype, low=-12, high=12), dim, interleaved)


@pytest.mark.parametrize("numbers", [{"alpha": 0.7}, {"limit": 1.5}, {"bias": 0.0}])
def test_options(numbers):
    check(make(6, 16, low=-12, high=12), **numbers)


def test_groups():
    device = make(1).device
    x = make(2, 5, 8, low=-9, high=9)
    for counts in ([2, 1, 4], [0, 0], [10], [7, 9]):
        check(x, group_index=torch.tensor(counts, device=device))


def test_rows_past_the_groups_do_not_matter():
    x = make(4, 8)
    x[2:] = float("nan")
    y = torch_npu.npu_clipped_swiglu(x, group_index=torch.tensor([2], device=x.device))
    assert y[:2].isfinite().all() and not y[2:].any()


def test_strided_and_empty():
    check(make(16, 6, low=-9, high=9).t())
    assert torch_npu.npu_clipped_swiglu(make(0, 8)).shape == (0, 4)


def test_odd_size():
    with pytest.raises(
        RuntimeError, match=r"npu_clipped_swiglu: argument 'x' must be of even size .*\(4, 7\)"
    ):
        torch_npu.npu_clipped_swiglu(make(4, 7))


def test_one_dimension():
    check(make(8))
    check(make(8), interleaved=False)
    with pytest.raises(RuntimeError, match="argument 'x' must be a tensor of at least 1 dimension"):
        torch_npu.npu_clipped_swiglu(make())


def test_dim_out_of_range():
    with pytest.raises(RuntimeError, match=r"argument 'dim' must be in \[-2, 1\], but received -3"):
        torch_npu.npu_clipped_swiglu(make(4, 8), dim=-3)


def test_group_index_dtype():
    with pytest.raises(RuntimeError, match="argument 'group_index' must be of dtype .*int32"):
        torch_npu.npu_clipped_swiglu(make(4, 8), group_index=make(2, dtype=torch.int32, high=2))
