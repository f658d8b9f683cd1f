"""The native activations and gated units."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from tests.kernels.support import (
    DTYPES,
    WIDTHS,
    assert_near,
    compare,
    randn,
    run_native,
    special,
    views,
)
from torch_npu.ops.activation.fast_gelu import fast_gelu
from torch_npu.ops.activation.npu_fast_gelu import npu_fast_gelu, npu_fast_gelu_backward
from torch_npu.ops.activation.npu_gelu import npu_gelu, npu_gelu_backward
from torch_npu.ops.activation.npu_gelu_mul import npu_gelu_mul
from torch_npu.ops.activation.npu_mish import npu_mish, npu_mish_backward
from torch_npu.ops.activation.npu_silu import npu_silu, npu_silu_, npu_silu_backward
from torch_npu.ops.activation.npu_swiglu import npu_swiglu, npu_swiglu_backward

TANH = {"approximate": "tanh"}
FORWARD = [
    (fast_gelu, {}),
    (npu_fast_gelu, {}),
    (npu_gelu, {}),
    (npu_gelu, TANH),
    (npu_mish, {}),
    (npu_silu, {}),
    (npu_silu_, {}),
]
BACKWARD = [
    (npu_fast_gelu_backward, {}),
    (npu_gelu_backward, {}),
    (npu_gelu_backward, TANH),
    (npu_mish_backward, {}),
]


def ident(value):
    return value.__name__ if isinstance(value, type) else None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operator,options", FORWARD, ids=ident)
def test_forward(operator, options, dtype):
    for width in WIDTHS:
        compare(operator, randn(width, dtype=dtype, scale=3), **options)
    for x in views(randn(3, 4, 21, dtype=dtype, scale=3)):
        compare(operator, x, **options)
    compare(operator, randn(0, 4, dtype=dtype), **options)
    compare(operator, torch.tensor(0.5, dtype=dtype), **options)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operator,options", BACKWARD, ids=ident)
def test_backward(operator, options, dtype):
    for width in WIDTHS:
        x = randn(width, dtype=dtype, scale=3)
        compare(operator, x.flip(0), x, **options)
    grads = views(randn(5, 3, 21, dtype=dtype))
    for dy, x in zip(grads, reversed(views(randn(5, 3, 21, dtype=dtype, scale=3))), strict=True):
        compare(operator, dy, x, strides=False, **options)


def test_gelu_backward_broadcasts():
    compare(npu_gelu_backward, randn(21), randn(4, 21))
    compare(npu_gelu_backward, randn(4, 1), randn(3, 1, 21), **TANH)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


def gelu_tanh(x: float) -> float:
    return x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def mish(x: float) -> float:
    softplus = x if x > 700 else math.log1p(math.exp(x))
    return x * math.tanh(softplus)


#: the formulas in fp64, one number at a time: PyTorch's own kernels differ at infinity from CPU to CPU
FORMULAS: list[Callable[[float], float]] = [
    lambda x: x * sigmoid(1.702 * x),
    lambda x: x * sigmoid(1.702 * x),
    lambda x: x / 2 * math.erfc(-x / math.sqrt(2)),
    gelu_tanh,
    mish,
    lambda x: x * sigmoid(x),
    lambda x: x * sigmoid(x),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "operator,options,formula",
    [(*case, formula) for case, formula in zip(FORWARD, FORMULAS, strict=True)],
    ids=ident,
)
def test_not_finite(operator, options, formula, dtype):
    x = special(randn(37, dtype=dtype))
    expected = torch.tensor([formula(v) for v in x.double().tolist()], dtype=torch.float64)
    assert expected.isnan().sum() == 2 and expected.isinf().sum() == 1  # -inf and NaN; inf
    assert_near(run_native(operator, (x.clone(),), options), expected.to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_backward(dtype):
    x = randn(5, 33, dtype=dtype, scale=3)
    y = torch.nn.functional.silu(x)
    for dy in views(randn(5, 33, dtype=dtype)):
        compare(npu_silu_backward, dy, x, y, strides=False)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gated(dtype):
    for width in WIDTHS:
        x, dy = randn(3, 2 * width, dtype=dtype, scale=2), randn(3, width, dtype=dtype)
        compare(npu_swiglu, x)
        compare(npu_swiglu_backward, dy, x)
        compare(npu_gelu_mul, x)
        compare(npu_gelu_mul, x, **TANH)
    for dim in (0, 1, 2, -2):
        shape = [3, 3, 5]
        dy = randn(*shape, dtype=dtype)
        shape[dim] *= 2
        for x in views(randn(*shape, dtype=dtype)):
            compare(npu_swiglu, x, dim)
            compare(npu_swiglu_backward, dy, x, dim, strides=False)
    compare(npu_swiglu, randn(0, 8, dtype=dtype))


def test_large_sizes_are_split_among_threads():
    x = randn(300, 1024, scale=2)
    compare(npu_gelu, x)
    compare(npu_swiglu, x)
    compare(npu_swiglu_backward, randn(300, 512), x)


@pytest.mark.parametrize("operator,options", FORWARD, ids=ident)
def test_float64_takes_the_formula(operator, options):
    x = randn(9).double()
    assert operator.as_function("body")(x.clone(), **options).dtype == torch.float64
