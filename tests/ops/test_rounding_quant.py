"""Where the card's quantizing kernels round, step by step in numpy; bits compared. docs/rounding.md lists the kernels."""

import numpy as np
import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.rounding import BRAIN, HALF, F, cast, integers, single
from tests.ops.support import make
from torch_npu.ops._shared import _formats
from torch_npu.ops.comm import _moe, npu_all_to_all_quant_matmul
from torch_npu.ops.mla import _prolog


def away(values):
    """int8, halves away from zero."""
    values = np.asarray(values, dtype=np.float64)
    return np.clip(np.sign(values) * np.floor(np.abs(values) + 0.5), -128, 127).astype(np.int8)


@pytest.mark.parametrize("family", ["310P", "910A"])
def test_dynamic_quant_multiplies_in_float16(family):
    x = make(300, 64, dtype=HALF, low=-5, high=5)
    with on(family):
        y, scale = torch_npu.npu_dynamic_quant(x)
        smoothed, _ = torch_npu.npu_dynamic_quant(x, smooth_scales=make(64, dtype=HALF, seed=1))
    a = single(x)
    high = np.abs(a).max(-1, keepdims=True)
    want = away(cast(a * cast(F(127) / high, HALF), HALF))
    assert np.array_equal(scale.cpu().numpy()[:, None], high * F(1 / F(127)))
    assert np.array_equal(y.cpu().numpy(), want)
    assert (want != integers(a * (F(127) / high))).any()
    assert torch.equal(smoothed, y)  # the kernels of these chips do not read smooth_scales


def test_dynamic_quant_of_rows_that_float16_cannot_scale():
    x = torch.full((2, 32), 2.0**-14, dtype=HALF).npu()  # 127 / 2**-14 is more than 65504
    x[1] = 0
    with on("310P"):
        y, scale = torch_npu.npu_dynamic_quant(x)
    assert y[0].unique().tolist() == [4] and y[1].unique().tolist() == [0]
    assert scale[1].item() == 0


@pytest.mark.parametrize("family", ["310P", "910A"])
def test_dynamic_quant_asymmetric_centers_the_range(family):
    x = make(300, 64, dtype=HALF, low=-5, high=7)
    x[0] = 1.5
    with on(family):
        y, scale, offset = torch_npu.npu_dynamic_quant_asymmetric(x)
    a = single(x)
    high, low = a.max(-1, keepdims=True), a.min(-1, keepdims=True)
    span = high - low
    factor = np.where(span > 0, F(255) / np.where(span > 0, span, F(1)), F(0))
    shift = -(high + low) * factor * F(0.5)
    values = cast(cast(a * cast(factor, HALF), HALF) + cast(shift, HALF), HALF)
    assert np.array_equal(scale.cpu().numpy()[:, None], span / F(255))
    assert np.array_equal(offset.cpu().numpy()[:, None], shift)
    assert np.array_equal(y.cpu().numpy(), away(values))


@pytest.mark.parametrize("dtype", [HALF, BRAIN])
def test_rotate_quant_multiplies_by_the_reciprocal(dtype):
    x, turn = make(200, 128, dtype=dtype, low=-5, high=5), torch.eye(16, dtype=dtype).npu()
    y, scale = torch_npu.npu_rotate_quant(x, turn)
    a = single(x)
    high = np.abs(a).max(-1, keepdims=True)
    assert np.array_equal(scale.cpu().numpy()[:, None], high * F(1 / F(127)))
    assert np.array_equal(y.cpu().numpy(), integers(a * (F(127) / high)))


@pytest.mark.parametrize("dtype", [HALF, BRAIN])
@pytest.mark.parametrize("least", [0.0, 100.0])
@pytest.mark.parametrize("family", ["A2", "A5"])
def test_dynamic_block_quant(dtype, least, family):
    x = make(50, 256, dtype=dtype, low=-5, high=5)
    x[0] = 0
    with on(family):
        y, scale = torch_npu.npu_dynamic_block_quant(x, min_scale=least)
    a = single(x).reshape(50, 2, 128)
    high = np.abs(a).max(-1, keepdims=True)
    most = F(np.inf) if least == 0 else F(1) / F(least)
    if family == "A5":
        found = np.minimum(high / F(127), most)
        values = a / np.where(found == 0, F(1), found)
    else:
        found = np.minimum(high * F(1 / F(127)), most)
        safe = np.where(high == 0, F(1), high)
        values = a * np.maximum(F(1) / safe * F(127), F(least))
    assert np.array_equal(scale.cpu().numpy(), found[..., 0])
    assert np.array_equal(y.cpu().numpy(), integers(values).reshape(50, 256))


def test_gelu_quant_divides_by_the_scale():
    x = make(200, 64, low=-3, high=3)
    with on("A5"):
        y, scale = torch_npu.npu_gelu_quant(x, approximate="tanh")
    a = single(torch.nn.functional.gelu(x, approximate="tanh"))
    found = np.abs(a).max(-1, keepdims=True) * F(1 / F(127))
    assert np.array_equal(scale.cpu().numpy()[:, None], found)
    assert np.array_equal(y.cpu().numpy(), integers(a / found))


def hifloat8(values):
    return _formats.encode(torch.from_numpy(values.astype(F)), "hifloat8")


@pytest.mark.parametrize("grouped", [False, True])
def test_swiglu_group_quant_multiplies_by_a_reciprocal(grouped):
    x = make(64, 256, low=-3, high=3)
    counts = torch.tensor([20, 0, 30]).npu() if grouped else None
    with on("A5"):
        y, scale, origin = torch_npu.npu_swiglu_group_quant(
            x, group_index=counts, quant_mode=3, output_origin=True
        )
    h = single(origin)
    groups = [slice(0, 20), slice(20, 50)] if grouped else [slice(0, 64)]
    found = []
    for rows in groups:
        high = np.maximum(np.abs(h[rows]).max(), F(1e-8))
        found.append(high / F(15))
        factor = F(15) / high if grouped else F(1) / found[-1]
        assert torch.equal(y[rows].cpu(), hifloat8(h[rows] * factor))
    assert scale.cpu()[[0, 2] if grouped else [0]].tolist() == found
    if grouped:
        assert (y[50:] == 0).all() and (origin[50:] != 0).any()


@pytest.mark.parametrize("family,dtype,size", [("A3", HALF, 8), ("A2", BRAIN, 8), ("A2", HALF, 16)])
def test_results_of_experts_travel_in_small_groups(family, dtype, size):
    """moe_distribute_combine_v2_quant.h: x / (max * (1 / 127)) through float16; scales and what arrives in the dtype."""
    rows = make(5, 40, dtype=dtype, low=-5, high=5).cpu()
    rows[0, :16] = 0
    with on(family):
        values, scale = _moe.quantize_groups(rows)
        back = _moe.restore_groups(values, scale)
    a = np.pad(single(rows), ((0, 0), (0, -40 % size))).reshape(5, -1, size)
    found = np.abs(a).max(-1, keepdims=True) * F(1 / F(127))
    whole = integers(cast(a / np.where(found == 0, F(1), found), HALF))
    assert np.array_equal(values.numpy(), whole.reshape(5, -1)[:, :40])
    assert np.array_equal(scale.float().numpy(), cast(found[..., 0], dtype))
    arrived = cast(whole.astype(F) * cast(found, dtype), dtype)
    assert np.array_equal(back.numpy(), arrived.reshape(5, -1)[:, :40])


def test_dispatched_rows_are_multiplied_by_the_reciprocal():
    rows = make(50, 64, dtype=BRAIN, low=-5, high=5).cpu()
    rows[0] = 0
    values, scale = _moe.quantize(rows)
    a = single(rows)
    high = np.abs(a).max(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        factor = F(127) / high
    assert np.array_equal(
        values.numpy(), integers(np.where(high == 0, F(0), a * np.where(high == 0, F(0), factor)))
    )
    assert np.array_equal(scale.numpy()[:, None], F(1) / factor)


@pytest.mark.parametrize("family", ["A2", "A5"])
def test_rows_of_all_to_all_quant_matmul(family):
    """allto_all_matmul.h multiplies by 127 / max, fp8_dynamic_quant_pertoken.h divides by the scale."""
    x = make(50, 64, dtype=BRAIN, low=-5, high=5).cpu()
    with on(family):
        values, scale = npu_all_to_all_quant_matmul._quantized(x, None, "int8")
    a = single(x)
    high = np.abs(a).max(-1, keepdims=True)
    found = high * F(1 / F(127)) if family == "A5" else high / F(127)
    want = a / found if family == "A5" else a * (F(127) / high)
    assert np.array_equal(scale.numpy()[:, None], found)
    assert np.array_equal(values.numpy(), integers(want))


def test_rows_of_mla_prolog():
    """mla_prolog_vector_comm.h: x * (127 / max), scale max / 127."""
    x = make(50, 64, low=-5, high=5).cpu()
    x[0] = 0
    rows, scale = _prolog.quantize_rows(x)
    a = single(x)
    high = np.abs(a).max(-1, keepdims=True)
    factor = F(127) / np.where(high == 0, F(1), high)
    assert np.array_equal(scale.numpy(), high / F(127))
    assert np.array_equal(rows.numpy(), integers(a * factor))


@pytest.mark.parametrize("family", ["A2", "A5"])
def test_grouped_matmul_swiglu_quant_v2_divides_by_the_scale(family):
    """The activated halves are multiples of 100, which SiLU leaves as they are."""
    x = make(40, 16, dtype=torch.int8, low=1, high=100)
    weight = torch.zeros(1, 16, 64, dtype=torch.int8)
    weight[0, 0, :32] = 100
    weight[0, :, 32:] = make(16, 32, dtype=torch.int8, low=-100, high=100, seed=1).cpu()
    scale = torch.ones(1, 64).npu()
    options = {"dequant_dtype": torch.float32} if family == "A5" else {}
    with on(family):
        q, found = torch_npu.npu_grouped_matmul_swiglu_quant_v2(
            x, [weight.npu()], [scale], torch.ones(40).npu(), torch.tensor([40]).npu(), **options
        )
    y = single(x) @ single(weight)[0]
    hidden = y[:, :32] * y[:, 32:]
    wanted = np.abs(hidden).max(-1, keepdims=True) * F(1 / F(127))
    assert np.array_equal(found.cpu().numpy()[:, None], wanted)
    assert np.array_equal(q.cpu().numpy(), integers(hidden / wanted))
