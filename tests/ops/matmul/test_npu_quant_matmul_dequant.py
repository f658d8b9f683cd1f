"""npu_quant_matmul_dequant and npu_quant_grouped_matmul_dequant against fp64 on int8 rows."""

import numpy as np
import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.support import make


@pytest.fixture(autouse=True)
def _atlas_inference():
    with on("310P"):
        yield


def rows_of(x, scale=None, smooth=None):
    """int8 rows and their scales by numpy float32."""
    x = x.cpu().float().numpy()
    x = x if smooth is None else x * smooth.cpu().float().numpy()
    if scale is not None:
        s = scale.cpu().float().numpy().reshape(-1, 1)
    else:
        s = np.abs(x).max(-1, keepdims=True) / np.float32(127)
    q = np.clip(np.rint(x * (np.float32(1) / np.where(s == 0, np.float32(1), s))), -128, 127)
    return torch.from_numpy(q).double(), torch.from_numpy(np.asarray(s)).double()


def close(y, want):
    assert y.dtype == torch.float16
    assert ((y.cpu().double() - want).abs() <= want.abs() * 2.0**-11 + 1e-5).all()


def ints(*shape):
    return make(*shape, dtype=torch.int8, low=-128, high=128)


@pytest.mark.parametrize("mode", ["pertoken", "pertensor", None])
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("smoothed", [True, False])
def test_product(mode, given, smoothed):
    x, w, ws = make(5, 48, dtype=torch.float16), ints(16, 48), make(16, low=0, high=0.01)
    whole = mode == "pertensor"
    scale = make(*(() if whole else (5,)), low=0.005, high=0.01) if given else None
    smooth = make(48, dtype=torch.float16) if smoothed else None
    if whole and not given:
        with pytest.raises(RuntimeError, match="'x_scale' must be given for quant_mode 'pert"):
            torch_npu.npu_quant_matmul_dequant(x, w, ws, quant_mode=mode)
        return
    y = torch_npu.npu_quant_matmul_dequant(
        x, w, ws, x_scale=scale, smooth_scale=smooth, quant_mode=mode
    )
    q, s = rows_of(x, scale, smooth)
    close(y, q @ w.cpu().double().t() * ws.cpu().double() * s)


def test_halves_are_decided_by_the_reciprocal():
    """4.5 over 9 / 127 is 63.5 and rounds to even; times the reciprocal it is a little more, as on the card."""
    x = torch.zeros(1, 16, dtype=torch.float16)
    x[0, :2] = torch.tensor([9.0, 4.5])
    weight = torch.zeros(16, 16, dtype=torch.int8)
    weight[0, 1] = 1
    y = torch_npu.npu_quant_matmul_dequant(x.npu(), weight.npu(), torch.ones(16).npu())
    assert y[0, 0].item() == torch.tensor(64 * 9 / 127).half().item()


@pytest.mark.parametrize("given", [True, False])
def test_groups(given):
    x, w, ws = make(9, 32, dtype=torch.float16), ints(3, 16, 32), make(3, 16, low=0, high=0.01)
    scale = make(9, low=0.005, high=0.01) if given else None
    y = torch_npu.npu_quant_grouped_matmul_dequant(
        x, w, ws, torch.tensor([2, 2, 9]).npu(), x_scale=scale
    )
    q, s = rows_of(x, scale)
    want = torch.zeros(9, 16, dtype=torch.float64)
    for e, part in ((0, slice(0, 2)), (2, slice(2, 9))):
        want[part] = q[part] @ w.cpu().double()[e].t() * ws.cpu().double()[e] * s[part]
    close(y, want)


def test_packed_scales_and_strides():
    x, w = make(32, 6, dtype=torch.float16).t(), ints(16, 32)
    exact = (make(16, low=0.5, high=2).view(torch.int32) & ~0x1FFF).view(torch.float32)
    packed, scale = torch_npu.npu_trans_quant_param(exact), make(6, low=0.005, high=0.01).half()
    y = torch_npu.npu_quant_matmul_dequant(x, w, packed, x_scale=scale)
    q, s = rows_of(x, scale)
    want = q @ w.cpu().double().t() * exact.cpu().double() * s
    assert ((y.cpu().double() - want).abs() <= want.abs() * 2.0**-11 + 1e-3).all()


def test_bad_arguments():
    x, w, ws = make(4, 16, dtype=torch.float16), ints(32, 16), make(32)
    for args, options, text in [
        ((x.float(), w, ws), {}, "'x' must be of dtype torch.float16"),
        ((x, w[:, :5], ws), {}, "'quantized_weight' must be of rows of 16, as 'x'"),
        ((x, w[:24], ws), {}, "'quantized_weight' must be of rows and columns divisible by 16"),
        ((x, ints(16, 32).t(), ws), {}, "'quantized_weight' must be contiguous"),
        ((x, w, ws[:3]), {}, r"'weight_scale' must be of shape \(32\)"),
        ((x, w, ws), {"x_scale": ws[:4].half()}, "'x_scale' must be of dtype torch.float32"),
        ((x, w, ws), {"x_scale": ws}, r"'x_scale' must be of shape \(4\)"),
        ((x, w, ws), {"quant_mode": "row"}, "'quant_mode' must be None, 'pertoken' or"),
        ((x, w, ws), {"smooth_scale": ws}, "'smooth_scale' must be of dtype torch.float16"),
    ]:
        with pytest.raises(RuntimeError, match="npu_quant_matmul_dequant: argument " + text):
            torch_npu.npu_quant_matmul_dequant(*args, **options)
    for name in ("bias", "x_offset"):
        with pytest.raises(NotImplementedError, match=f"'{name}' must be left at None"):
            torch_npu.npu_quant_matmul_dequant(x, w, ws, **{name: ws})
    with pytest.raises(RuntimeError, match="'group_list' must be of dtype torch.int64"):
        torch_npu.npu_quant_grouped_matmul_dequant(
            x, w[None], ws[None], torch.tensor([4], dtype=torch.int32).npu()
        )
    with on("A2"), pytest.raises(NotImplementedError, match="'device' must be of the family 310P"):
        torch_npu.npu_quant_matmul_dequant(x, w, ws)
