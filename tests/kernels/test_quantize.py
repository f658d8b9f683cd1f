"""The native static quantization and the dequantize-gate-quantize fusion: integers exactly those of the formula."""

from __future__ import annotations

import itertools

import pytest
import torch

from tests.kernels.support import DTYPES, WIDTHS, compare, randn, special, views
from torch_npu.ops.quant.npu_dequant_swiglu_quant import npu_dequant_swiglu_quant
from torch_npu.ops.quant.npu_quantize import npu_quantize


@pytest.mark.parametrize("divide", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_quantize(dtype, divide):
    for width, to in itertools.product(WIDTHS, (torch.qint8, torch.quint8)):
        x, scales = randn(4, width, dtype=dtype, scale=50), randn(width).abs() + 0.1
        zero = torch.arange(width, dtype=torch.int32)
        compare(npu_quantize, x, scales, zero, to, 1, divide, exact=False)
        compare(npu_quantize, x, scales[:1], None, to, 1, divide, exact=False)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2])
def test_axes_and_strides(axis):
    for x in views(randn(3, 5, 16, scale=50)):
        size = x.shape[axis]
        scales, zero = randn(size).abs() + 0.1, randn(size, scale=9)
        compare(npu_quantize, x, scales, zero, torch.qint8, axis, exact=False)
        compare(npu_quantize, x, scales, None, torch.qint8, axis, exact=False)


def test_int4_and_shapes():
    x = randn(2, 3, 24, dtype=torch.float16, scale=5)
    for shape, axis in (((24,), -1), ((1,), -1), ((1, 1, 24), -1), ((1, 3, 1), -2), ((3,), -2)):
        scales = randn(*shape, dtype=torch.float16).abs() + 0.5
        compare(npu_quantize, x, scales, scales.neg(), torch.quint4x2, axis, False, exact=False)
    compare(npu_quantize, randn(0, 8), randn(1), None, torch.qint8, exact=False)
    compare(npu_quantize, special(randn(5, 9)), randn(1).abs(), None, torch.qint8, exact=False)


def test_halves_round_to_even():
    x = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 300, -300, torch.nan, 1e30, -1e30, torch.inf])
    y = npu_quantize.as_function("body")(x, torch.ones(1), None, torch.qint8, 0)
    assert y.tolist() == [0, 2, 2, 0, -2, 127, -128, 0, 127, -128, 127]


def test_int32_takes_the_formula():
    x = randn(4, 8, scale=1e6)
    y = npu_quantize.as_function("body")(x, torch.full((1,), 0.001), None, torch.qint32)
    assert y.dtype == torch.int32


# --- dequantize, gate, quantize -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.int32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("dynamic", [0, 1])
def test_swiglu(dtype, mode, dynamic):
    for width in WIDTHS:
        x = randn(5, 2 * width, scale=20 if dtype == torch.int32 else 2).to(dtype)
        options = {"quant_mode": dynamic, "swiglu_mode": mode, "activate_left": width % 2 == 0}
        if dtype == torch.int32:
            options |= {
                "weight_scale": randn(2 * width).abs() / 9, "activation_scale": randn(5, 1).abs(),
                "bias": torch.arange(2 * width, dtype=torch.int32),
            }  # fmt: skip
        if not dynamic:
            options["quant_offset"] = randn(width)
        options["quant_scale"] = randn(width).abs() / 50 + 0.01
        compare(npu_dequant_swiglu_quant, x, exact=False, **options)


@pytest.mark.parametrize("counts", [[2, 0, 3, 4], [0, 0, 9, 0], [1, 1, 1, 1], [0, 0, 0, 0]])
@pytest.mark.parametrize("dynamic", [0, 1])
def test_groups(counts, dynamic):
    x = randn(9, 128, scale=20).to(torch.int32)
    options = {
        "weight_scale": randn(4, 128).abs() / 9, "activation_scale": randn(9).abs(),
        "quant_mode": dynamic, "group_index": torch.tensor(counts),
    }  # fmt: skip
    for scale in (randn(4, 64).abs() + 0.1, randn(4).abs() + 0.1):
        compare(npu_dequant_swiglu_quant, x, exact=False, quant_scale=scale, **options)


def test_strides_and_special_values():
    for x in views(special(randn(6, 34, dtype=torch.float16))):
        compare(npu_dequant_swiglu_quant, x, exact=False, quant_mode=1)
        compare(npu_dequant_swiglu_quant, x, exact=False, quant_scale=randn(17).abs() + 0.1)
    compare(npu_dequant_swiglu_quant, randn(0, 16, dtype=torch.float16), exact=False, quant_mode=1)
