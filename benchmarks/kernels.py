"""Native kernels at 4M elements, forward and backward, fp32 and half precision, beside their formulas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional

import torch_npu
from benchmarks import formulas
from benchmarks.harness import Case
from benchmarks.side_by_side import Kernel

ROWS, WIDTH = 2048, 2048  # 4M elements
LAST = [WIDTH]
#: for operators that have no bfloat16, and for those that have no fp32
FP16, BF16 = (torch.float32, torch.float16), (torch.bfloat16,)

npu, grad, aten = torch_npu, torch.ops.npu, torch.ops.aten


def matrix(dtype: torch.dtype, rows: int = ROWS, width: int = WIDTH) -> torch.Tensor:
    return torch.randn(rows, width).to(dtype)


def one(dtype: torch.dtype) -> tuple[Any, ...]:
    return (matrix(dtype),)


def two(dtype: torch.dtype) -> tuple[Any, ...]:
    return matrix(dtype), matrix(dtype)


def affine(dtype: torch.dtype, width: int = WIDTH) -> tuple[Any, ...]:
    return tuple(torch.randn(width).to(dtype) for _ in range(2))


def normed(dtype: torch.dtype) -> tuple[Any, ...]:
    dy, x, gamma = matrix(dtype), matrix(dtype), torch.randn(WIDTH).to(dtype)
    return dy, x, gamma, formulas.rms_norm(x, gamma)[1]


def layer_normed(dtype: torch.dtype) -> tuple[Any, ...]:
    (dy, x), (gamma, beta) = two(dtype), affine(dtype)
    _, mean, rstd = torch.native_layer_norm(x, LAST, gamma, beta, 1e-5)
    return dy, x, gamma, beta, mean, rstd


def images(dtype: torch.dtype) -> tuple[Any, ...]:
    return torch.randn(4, 64, 128, 128).to(dtype), *affine(dtype, 64)


def group_normed(dtype: torch.dtype) -> tuple[Any, ...]:
    x, gamma, beta = images(dtype)
    _, mean, rstd = torch.native_group_norm(x, gamma, beta, 4, 64, 128 * 128, 8, 1e-5)
    return torch.randn_like(x), x, gamma, beta, mean, rstd


def grouped(dtype: torch.dtype) -> tuple[Any, ...]:
    dy, x, gamma, _, mean, rstd = group_normed(dtype)
    return dy, x, gamma, mean, rstd


def silu_inputs(dtype: torch.dtype) -> tuple[Any, ...]:
    dy, x = two(dtype)
    return dy, x, functional.silu(x)


def heads(dtype: torch.dtype) -> tuple[Any, ...]:
    angles = [torch.randn(1, 1, 512, 128).to(dtype) for _ in range(2)]
    return torch.randn(2, 32, 512, 128).to(dtype), *angles


def latent_heads(dtype: torch.dtype) -> tuple[Any, ...]:
    angles = [torch.randn(4, 1, 512, 64).to(dtype) for _ in range(2)]
    return torch.randn(4, 32, 512, 64).to(dtype), *angles


def scores(dtype: torch.dtype) -> tuple[Any, ...]:
    return torch.randn(4, 4, 512, 512).to(dtype), torch.rand(1, 1, 512, 512) > 0.7


def logits(dtype: torch.dtype) -> tuple[Any, ...]:
    return matrix(dtype, 128, 32768), torch.randint(0, 32768, (128,))


def log_probs(dtype: torch.dtype) -> tuple[Any, ...]:
    x, target = logits(dtype)
    return torch.randn(1).to(dtype), x.float().log_softmax(-1).to(dtype), target


def gated_integers(dtype: torch.dtype) -> tuple[Any, ...]:
    x = torch.randint(-999, 1000, (ROWS, WIDTH), dtype=dtype)
    return x, torch.rand(WIDTH) / 100, torch.rand(ROWS, 1)


NORMS = [
    Kernel("npu_rms_norm", lambda d: normed(d)[1:3], lambda *a: npu.npu_rms_norm(*a),
           formulas.rms_norm),
    Kernel("npu_rms_norm_backward", normed, grad.npu_rms_norm_backward, formulas.rms_norm_backward,
           5e-2),
    Kernel("npu_add_rms_norm", lambda d: normed(d)[:3], lambda *a: npu.npu_add_rms_norm(*a),
           formulas.add_rms_norm),
    Kernel("npu_layer_norm_eval", lambda d: (matrix(d), *affine(d)),
           lambda x, g, b: npu.npu_layer_norm_eval(x, LAST, g, b), formulas.layer_norm),
    Kernel("layer_norm", lambda d: (matrix(d), *affine(d)), formulas.layer_norm,
           formulas.layer_norm),
    Kernel("layer_norm backward", layer_normed, formulas.layer_norm_backward,
           formulas.layer_norm_backward, 0.25),
    Kernel("group_norm", images, formulas.group_norm, formulas.group_norm),
    Kernel("group_norm backward", grouped, formulas.group_norm_backward,
           formulas.group_norm_backward, 2.0),
    Kernel("npu_group_norm_silu", images, lambda x, g, b: npu.npu_group_norm_silu(x, g, b, 8)[0],
           formulas.group_norm_silu),
    Kernel("npu_group_norm_swish", images,
           lambda x, g, b: npu.npu_group_norm_swish(x, 8, g, b)[0], formulas.group_norm_silu),
    Kernel("npu_group_norm_swish_grad", group_normed,
           lambda dy, x, g, b, m, r: grad.npu_group_norm_swish_grad(
               dy, x, 8, g, b, m.to(x.dtype), r.to(x.dtype), [True] * 3),
           formulas.group_norm_silu_backward, 2.0),
]  # fmt: skip

ACTIVATIONS = [
    Kernel("npu_swiglu", one, npu.npu_swiglu, formulas.swiglu),
    Kernel("npu_swiglu_backward", lambda d: (matrix(d, width=WIDTH // 2), matrix(d)),
           grad.npu_swiglu_backward, formulas.swiglu_backward),
    Kernel("npu_gelu", one, npu.npu_gelu, functional.gelu),
    Kernel("npu_gelu_backward", two, grad.npu_gelu_backward, aten.gelu_backward),
    Kernel("npu_fast_gelu", one, npu.npu_fast_gelu, formulas.fast_gelu),
    Kernel("npu_fast_gelu_backward", two, grad.npu_fast_gelu_backward,
           formulas.fast_gelu_backward, 5e-2),
    Kernel("npu_silu", one, npu.npu_silu, functional.silu, dtypes=FP16),
    Kernel("npu_silu_backward", silu_inputs, grad.npu_silu_backward,
           lambda dy, x, y: aten.silu_backward(dy, x), dtypes=FP16),
    Kernel("npu_mish", one, npu.npu_mish, functional.mish, dtypes=FP16),
    Kernel("npu_mish_backward", two, grad.npu_mish_backward, aten.mish_backward, dtypes=FP16),
]  # fmt: skip

ROTARY = [
    Kernel("npu_rotary_mul", heads, npu.npu_rotary_mul, formulas.rotary, 5e-2),
    Kernel("npu_rotary_mul_backward", lambda d: (heads(d)[0], *heads(d)),
           grad.npu_rotary_mul_backward, formulas.rotary_backward, 0.25),
    Kernel("npu_interleave_rope", latent_heads, npu.npu_interleave_rope, formulas.interleave_rope,
           5e-2, BF16),
]  # fmt: skip

SOFTMAX = [
    Kernel("npu_scaled_masked_softmax", scores,
           lambda x, m: npu.npu_scaled_masked_softmax(x, m, 0.5), formulas.masked_softmax),
    Kernel("npu_scaled_masked_softmax_backward", lambda d: (scores(d)[0], *scores(d)),
           lambda g, y, m: grad.npu_scaled_masked_softmax_backward(g, y, m, 0.5, False),
           formulas.masked_softmax_backward),
    Kernel("npu_cross_entropy_loss", logits, lambda x, t: npu.npu_cross_entropy_loss(x, t)[:2],
           formulas.cross_entropy),
    Kernel("npu_cross_entropy_loss_backward", log_probs, grad.npu_cross_entropy_loss_backward,
           formulas.cross_entropy_backward),
]  # fmt: skip

QUANTIZATION = [
    Kernel("npu_quantize", lambda d: (matrix(d), torch.rand(WIDTH) + 0.1),
           lambda x, s: npu.npu_quantize(x, s, None, torch.qint8, 1), formulas.quantize, 1),
    Kernel("npu_dynamic_quant", one, npu.npu_dynamic_quant, formulas.dynamic_quant, 1,
           (torch.float16, torch.bfloat16)),
    Kernel("npu_dynamic_quant_asymmetric", one, npu.npu_dynamic_quant_asymmetric,
           formulas.dynamic_quant_asymmetric, 1, (torch.float16, torch.bfloat16)),
    Kernel("npu_dequant_swiglu_quant", gated_integers,
           lambda x, w, a: npu.npu_dequant_swiglu_quant(
               x, weight_scale=w, activation_scale=a, quant_mode=1),
           formulas.dequant_swiglu_quant, 1, (torch.int32,)),
]  # fmt: skip

GROUPS = {
    "norms": NORMS,
    "activations": ACTIVATIONS,
    "rotary embedding": ROTARY,
    "softmax and loss": SOFTMAX,
    "quantization": QUANTIZATION,
}


def cases() -> Iterator[Case]:
    for group, kernels in GROUPS.items():
        for kernel in kernels:
            yield from kernel.cases(group)
