"""npu_swiglu_mx_quant: the activation in fp64, rounded, then frexp and search."""

import numpy as np
import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.quant import mx
from tests.ops.support import make


@pytest.fixture(autouse=True)
def _ascend950():
    with on("A5"):
        yield


def hidden(x, dim=-1, left=False, mode=0, limit=7.0, alpha=1.702, bias=1.0):
    wide = x.cpu().double()
    if mode:
        a, b = wide[..., 0::2].clamp(max=limit), wide[..., 1::2].clamp(-limit, limit)
        h = a / (1 + (-alpha * a).exp()) * (b + bias)
    else:
        a, b = wide.chunk(2, dim)[:: 1 if left else -1]
        h = a / (1 + (-a).exp()) * b
    return h.float().to(x.dtype).double().numpy()


@pytest.mark.parametrize("dst", [mx.E4M3, mx.E5M2, mx.E2M1, mx.E1M2])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("dim,axis", [(-1, -1), (-1, -2), (-2, -1), (1, 1)])
def test_halves(dst, left, dim, axis):
    x = make(3, 40, 140, dtype=torch.bfloat16, low=-4, high=4)
    y, scale = torch_npu.npu_swiglu_mx_quant(
        x, activate_dim=dim, activate_left=left, axis=axis, dst_type=dst
    )
    mx.same(y, scale, mx.quantize(hidden(x, dim, left), dst, axis), dst)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("algorithm", [1, 2])
def test_clamped_form(dtype, algorithm):
    x = make(5, 132, dtype=dtype, low=-9, high=9)
    y, scale = torch_npu.npu_swiglu_mx_quant(
        x,
        swiglu_mode=1,
        clamp_limit=3.0,
        glu_alpha=1.25,
        glu_bias=0.5,
        dst_type=mx.E4M3,
        scale_alg=algorithm,
    )
    mx.same(y, scale, mx.quantize(hidden(x, -1, 0, 1, 3.0, 1.25, 0.5), mx.E4M3, alg=1), mx.E4M3)


def grouped(h, sizes, dst, axis, **options):
    rows = sum(sizes)
    values = np.zeros_like(h)
    if axis == -1:
        values[:rows], bytes_ = mx.quantize(h[:rows], dst, -1, **options)
        return values, np.concatenate(
            (bytes_, np.zeros((len(h) - rows, *bytes_.shape[1:]), np.uint8))
        )
    scales = np.zeros((len(h) // 64 + len(sizes), h.shape[1], 2), np.uint8)
    start = first = 0
    for size in sizes:
        if size:
            values[start : start + size], bytes_ = mx.quantize(
                h[start : start + size], dst, 0, **options
            )
            scales[first : first + len(bytes_)] = bytes_
            first += len(bytes_)
        start += size
    return values, scales


@pytest.mark.parametrize("sizes", [(70, 3, 60), (64, 64), (10,), (0, 65, 5)])
@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("dim", [-1, -2])
@pytest.mark.parametrize("kind", [0, 1])
def test_groups(sizes, axis, dim, kind):
    x = make(140, 12, dtype=torch.float16, low=-4, high=4)
    x = x if dim == -1 else torch.cat((x, x * 0.5))
    index = torch.tensor(sizes)
    index = (index.cumsum(0) if kind else index).to(torch.int32 if kind else torch.int64).npu()
    y, scale = torch_npu.npu_swiglu_mx_quant(
        x, group_index=index, axis=axis, activate_dim=dim, group_mode=kind, round_mode="floor"
    )
    want = grouped(hidden(x, dim), sizes, mx.E2M1, axis, mode="floor")
    mx.same(y, scale, want, mx.E2M1)


def test_bad_arguments():
    x = make(4, 64, dtype=torch.float16)
    index = torch.tensor([2, 3]).npu()
    for given, options, text in [
        (x.float(), {}, "'x' must be of dtype torch.float16 or torch.bfloat16"),
        (x[:, :62], {}, "'x' must be such that the last dimension of y is even"),
        (x[:, :63], {}, "'x' must be of an even size along 'activate_dim'"),
        (x, {"activate_dim": 2}, "'activate_dim' must be -1, -2, 0 or 1"),
        (x, {"swiglu_mode": 2}, "'swiglu_mode' must be 0 or 1, but received 2"),
        (x, {"swiglu_mode": 1, "activate_dim": -2}, "'activate_dim' must be -1 or 1"),
        (x, {"clamp_limit": 0.0}, "'clamp_limit' must be positive and finite"),
        (x, {"scale_alg": 1}, "'scale_alg' must be 0, but received 1"),
        (x, {"group_index": index}, r"'group_index' must be a list whose sum is at most .* \(4\)"),
        (x, {"group_index": index.float()}, "'group_index' must be of dtype torch.int64"),
        (x[:0], {}, "'x' must be not empty"),
    ]:
        with pytest.raises(RuntimeError, match="npu_swiglu_mx_quant: argument " + text):
            torch_npu.npu_swiglu_mx_quant(given, **options)
