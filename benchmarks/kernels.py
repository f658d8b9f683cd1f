"""Native kernels at 4M elements, fp32 and bf16: against CPU eager, Inductor and a copy of the bytes they move.

A row is the operator, and its formula as a user would write it in PyTorch: CPU eager runs it as it is, Inductor
compiled. `copy` moves as many bytes as the operator reads and writes, on the device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from torch.utils._pytree import tree_flatten, tree_map_only

import torch_npu
from benchmarks.harness import Case, Goal

INDUCTOR, COPY = Goal(1.0), Goal(2.0)
ROWS, WIDTH = 2048, 2048  # 4M elements
FLOATS = (torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class Row:
    """One operator: inputs for a dtype, the call, the formula, and how close both must be."""

    name: str
    inputs: Callable[[torch.dtype], tuple[Any, ...]]
    call: Callable[..., Any]
    formula: Callable[..., Any]
    tolerance: float = 2e-2
    bound: bool = True  # by memory, so that the goal of copying holds


def matrix(dtype: torch.dtype, rows: int = ROWS, width: int = WIDTH) -> torch.Tensor:
    return torch.randn(rows, width).to(dtype)


def rms_norm(x, gamma):
    rstd = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
    return (x.float() * rstd * gamma.float()).to(x.dtype), rstd


def rms_norm_backward(dy, x, gamma, rstd):
    normed, scaled = x.float() * rstd, dy.float() * gamma.float()
    dx = rstd * (scaled - normed * (scaled * normed).mean(-1, keepdim=True))
    return dx.to(x.dtype), (dy.float() * normed).sum(0)


def add_rms_norm(x1, x2, gamma):
    x = x1 + x2
    return *rms_norm(x, gamma), x


def layer_norm(x, gamma, beta):
    return functional.layer_norm(x, (x.shape[-1],), gamma, beta)


def group_norm_silu(x, gamma, beta):
    y = functional.silu(functional.group_norm(x.float(), 8, gamma.float(), beta.float()))
    return y.to(x.dtype)


def swiglu(x):
    gate, value = x.chunk(2, -1)
    return functional.silu(gate) * value


def swiglu_backward(dy, x):
    gate, value = x.float().chunk(2, -1)
    s = torch.sigmoid(gate)
    slope = s * (1 + gate * (1 - s))
    return torch.cat((dy * value * slope, dy * gate * s), -1).to(x.dtype)


def fast_gelu(x):
    return x * torch.sigmoid(1.702 * x)


def rotary(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def interleave_rope(x, cos, sin):
    x = torch.cat((x[..., ::2], x[..., 1::2]), -1)
    return rotary(x, cos, sin)


def masked_softmax(x, mask):
    return (x.float() * 0.5).masked_fill(mask, -10000.0).softmax(-1).to(x.dtype)


def masked_softmax_backward(dy, y, mask):
    dz = y.float() * (dy.float() - (dy.float() * y.float()).sum(-1, keepdim=True))
    return (dz * 0.5).masked_fill(mask, 0).to(y.dtype)


def cross_entropy(x, target):
    log_prob = x.float().log_softmax(-1)
    return functional.nll_loss(log_prob, target).reshape(1).to(x.dtype), log_prob.to(x.dtype)


def dynamic_quant(x):
    wide = x.float()
    scale = wide.abs().amax(-1, keepdim=True) / 127
    return (wide / scale).round().clamp(-128, 127).to(torch.int8), scale.squeeze(-1)


def dynamic_quant_asymmetric(x):
    wide = x.float()
    high, low = wide.amax(-1, keepdim=True), wide.amin(-1, keepdim=True)
    scale = (high - low) / 255
    offset = 127 - high / scale
    y = (wide / scale + offset).round().clamp(-128, 127).to(torch.int8)
    return y, scale.squeeze(-1), offset.squeeze(-1)


def quantize(x, scale):
    return (x.float() / scale).round().clamp(-128, 127).to(torch.int8)


def dequant_swiglu_quant(x, weight, activation):
    d = x.float() * weight * activation
    right, left = d.chunk(2, -1)
    return dynamic_quant(left * torch.sigmoid(left) * right)


def gating(x):
    return (*torch.softmax(x.float(), -1).topk(8, -1),)


def heads(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    angles = [torch.randn(1, 1, 512, 128).to(dtype) for _ in range(2)]
    return torch.randn(2, 32, 512, 128).to(dtype), *angles


def latent_heads(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    angles = [torch.randn(4, 1, 512, 64).to(dtype) for _ in range(2)]
    return torch.randn(4, 32, 512, 64).to(dtype), *angles


def normed(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    x, gamma = matrix(dtype), torch.randn(WIDTH).to(dtype)
    return matrix(dtype), x, gamma, rms_norm(x, gamma)[1]


def logits(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    return matrix(dtype, 128, 32768), torch.randint(0, 32768, (128,))


def gated_integers(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    x = torch.randint(-999, 1000, (ROWS, WIDTH), dtype=torch.int32)
    return x, torch.rand(WIDTH) / 100, torch.rand(ROWS, 1)


def gamma_beta(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(WIDTH).to(dtype) for _ in range(2))


def mask(x: torch.Tensor) -> torch.Tensor:
    return torch.rand(1, 1, *x.shape[-2:]) > 0.7


def images(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    x = torch.randn(4, 64, 128, 128).to(dtype)
    return x, torch.randn(64).to(dtype), torch.randn(64).to(dtype)


def scores(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    x = torch.randn(4, 4, 512, 512).to(dtype)
    return x, mask(x)


NPU = torch_npu
GRAD = torch.ops.npu
LAST = [WIDTH]
GELU_SLOPE = torch.ops.aten.gelu_backward
ROWS_OF_TABLE = [
    Row("npu_rms_norm", lambda d: normed(d)[1:3], lambda x, g: NPU.npu_rms_norm(x, g), rms_norm),
    Row("npu_rms_norm_backward", normed, GRAD.npu_rms_norm_backward, rms_norm_backward, 5e-2),
    Row("npu_add_rms_norm", lambda d: normed(d)[:3],
        lambda a, b, g: NPU.npu_add_rms_norm(a, b, g), add_rms_norm),
    Row("npu_layer_norm_eval", lambda d: (matrix(d), *gamma_beta(d)),
        lambda x, g, b: NPU.npu_layer_norm_eval(x, LAST, g, b), layer_norm),
    Row("npu_group_norm_silu", images, lambda x, g, b: NPU.npu_group_norm_silu(x, g, b, 8)[0],
        group_norm_silu),
    Row("npu_swiglu", lambda d: (matrix(d),), NPU.npu_swiglu, swiglu),
    Row("npu_swiglu_backward", lambda d: (matrix(d, width=WIDTH // 2), matrix(d)),
        GRAD.npu_swiglu_backward, swiglu_backward),
    Row("npu_gelu", lambda d: (matrix(d),), NPU.npu_gelu, functional.gelu),
    Row("npu_gelu_backward", lambda d: (matrix(d), matrix(d)), GRAD.npu_gelu_backward, GELU_SLOPE),
    Row("npu_fast_gelu", lambda d: (matrix(d),), NPU.npu_fast_gelu, fast_gelu),
    Row("npu_rotary_mul", heads, NPU.npu_rotary_mul, rotary),
    Row("npu_scaled_masked_softmax", scores,
        lambda x, m: NPU.npu_scaled_masked_softmax(x, m, 0.5), masked_softmax),
    Row("npu_scaled_masked_softmax_backward", lambda d: (scores(d)[0], *scores(d)),
        lambda g, y, m: GRAD.npu_scaled_masked_softmax_backward(g, y, m, 0.5, False),
        masked_softmax_backward),
    Row("npu_cross_entropy_loss", logits, lambda x, t: NPU.npu_cross_entropy_loss(x, t)[:2],
        cross_entropy),
    Row("npu_quantize", lambda d: (matrix(d), torch.rand(WIDTH) + 0.1),
        lambda x, s: NPU.npu_quantize(x, s, None, torch.qint8, 1), quantize, 1),
    Row("npu_moe_gating_top_k_softmax", lambda d: (matrix(d, 16384, 256),),
        lambda x: NPU.npu_moe_gating_top_k_softmax(x, k=8)[:1], lambda x: gating(x)[:1], 2e-2, False),
]  # fmt: skip

#: only what the operator takes: fp32 for those that have no bf16, and the reverse
SOME = [
    (torch.float32, Row("npu_silu", lambda d: (matrix(d),), NPU.npu_silu, functional.silu)),
    (torch.float32, Row("npu_mish", lambda d: (matrix(d),), NPU.npu_mish, functional.mish)),
    (torch.bfloat16, Row("npu_interleave_rope", latent_heads, NPU.npu_interleave_rope,
                         interleave_rope)),
    (torch.bfloat16, Row("npu_dynamic_quant", lambda d: (matrix(d),), NPU.npu_dynamic_quant,
                         dynamic_quant, 1)),
    (torch.bfloat16, Row("npu_dynamic_quant_asymmetric", lambda d: (matrix(d),),
                         NPU.npu_dynamic_quant_asymmetric, dynamic_quant_asymmetric, 1)),
    (torch.int32, Row("npu_dequant_swiglu_quant", gated_integers,
                      lambda x, w, a: NPU.npu_dequant_swiglu_quant(
                          x, weight_scale=w, activation_scale=a, quant_mode=1),
                      dequant_swiglu_quant, 1)),
]  # fmt: skip


def cases() -> Iterator[Case]:
    table = [(dtype, row) for row in ROWS_OF_TABLE for dtype in FLOATS] + SOME
    for dtype, row in table:
        yield from compared(row, dtype)


def compared(row: Row, dtype: torch.dtype) -> Iterator[Case]:
    """The three comparisons; tensors come into being when the first of them runs."""

    @functools.cache
    def sides() -> tuple[tuple[Any, ...], tuple[Any, ...], torch.Tensor]:
        host = row.inputs(dtype)
        npu = tree_map_only(torch.Tensor, torch.Tensor.npu, host)
        moved = sum(t.nbytes for t in _tensors((npu, row.call(*npu))))
        return host, npu, torch.zeros(moved // 2, dtype=torch.uint8, device="npu")

    def subject() -> Any:
        return row.call(*sides()[1])

    def check() -> None:
        right = _tensors(row.formula(*sides()[0]))
        for got, want in zip(_tensors(subject()), right, strict=True):
            torch.testing.assert_close(
                got.cpu().float(), want.float(), rtol=row.tolerance, atol=row.tolerance
            )

    compiled = functools.cache(lambda: torch.compile(row.formula))
    name = str(dtype).removeprefix("torch.")
    eager = Case(row.name, f"{name}, cpu", subject, lambda: row.formula(*sides()[0]), None, check)
    yield eager
    yield Case(row.name, f"{name}, inductor", subject, lambda: compiled()(*sides()[0]), INDUCTOR,
               against="inductor")  # fmt: skip
    yield Case(row.name, f"{name}, copy", subject, lambda: sides()[2].clone(),
               COPY if row.bound else None, against="npu copy")  # fmt: skip


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [t for t in tree_flatten(tree)[0] if isinstance(t, torch.Tensor)]
