"""npu_dynamic_dual_level_mx_quant against numpy, level by level."""

import math

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


def reference(x, smooth=None, mode="rint"):
    host = x.cpu() if smooth is None else x.cpu() * smooth.cpu()
    rows = host.float().numpy().reshape(-1, x.shape[-1])
    level0 = np.zeros((len(rows), -(-rows.shape[1] // 512)), np.float32)
    normed = np.zeros_like(rows)
    for r, b in np.ndindex(*level0.shape):
        part = rows[r, 512 * b : 512 * b + 512]
        finite = np.abs(part[np.isfinite(part)])
        top = (finite.max() if finite.size else np.float32(0)) * np.float32(1 / 6)
        level0[r, b] = top
        with np.errstate(invalid="ignore", divide="ignore"):
            normed[r, 512 * b : 512 * b + 512] = np.where(part == 0, part, part / top)
    rounded = torch.from_numpy(normed).to(x.dtype).double().numpy()
    values, bytes_ = mx.quantize(rounded, mx.E2M1, mode=mode, tiny=True)
    lead = x.shape[:-1]
    return (
        values.reshape(x.shape),
        torch.from_numpy(level0.reshape(*lead, -1)),
        bytes_.reshape(*lead, -1, 2),
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2, 600), (2, 3, 64), (2,), (1, 1030)])
@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize("mode", ["rint", "round", "floor"])
def test_levels(dtype, shape, smooth, mode):
    x = mx.spread(*shape, dtype=dtype, low=-6, high=6)
    factors = make(shape[-1], dtype=dtype) if smooth else None
    y, level0, level1 = torch_npu.npu_dynamic_dual_level_mx_quant(
        x, smooth_scale=factors, round_mode=mode
    )
    values, first, bytes_ = reference(x, factors, mode)
    mx.same(y, level1, (values, bytes_), mx.E2M1)
    assert level0.dtype == torch.float32 and torch.equal(level0.cpu(), first)


def test_zeros_infinities_and_strides():
    x = torch.zeros(3, 64, dtype=torch.bfloat16)
    x[0, 2], x[0, 3], x[1, 40] = math.inf, 5.0, math.nan
    y, level0, level1 = torch_npu.npu_dynamic_dual_level_mx_quant(x.npu())
    assert level1.tolist() == [[[255, 0]], [[0, 255]], [[0, 0]]] and not y.any()
    assert level0.tolist()[1:] == [[0.0], [0.0]] and level0[0, 0] > 0.8
    x = mx.spread(64, 4).t()
    y, level0, level1 = torch_npu.npu_dynamic_dual_level_mx_quant(x)
    values, _, bytes_ = reference(x)
    mx.same(y, level1, (values, bytes_), mx.E2M1)


def test_bad_arguments():
    x = make(2, 64, dtype=torch.float16)
    for given, options, text in [
        (x.float(), {}, "'input' must be of dtype torch.float16 or torch.bfloat16"),
        (x[:, :63], {}, "'input' must be of a last dimension divisible by 2"),
        (x, {"smooth_scale": make(64)}, "'smooth_scale' must be of the dtype of 'input'"),
        (x, {"smooth_scale": x}, r"'smooth_scale' must be of shape \(64\)"),
        (x, {"round_mode": "ceil"}, "'round_mode' must be 'rint', 'floor' or 'round'"),
    ]:
        with pytest.raises(RuntimeError, match="npu_dynamic_dual_level_mx_quant: argument " + text):
            torch_npu.npu_dynamic_dual_level_mx_quant(given, **options)
