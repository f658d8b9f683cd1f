"""SwiGLU with quantization to 8-bit floats of `_C_ascend` (experts of Ascend950).

Kernel: vllm-ascend, csrc/moe/swiglu_group_quant.
"""

from __future__ import annotations

import torch

from softnpu.contrib.vllm_ascend import epilogs
from softnpu.contrib.vllm_ascend._define import ascend_op
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._shared import _mx

__all__ = ["npu_swiglu_group_quant"]

GROUPS, MX, TOKENS = 1, 2, 3
_FLOAT8 = (torch.float8_e5m2, torch.float8_e4m3fn)
_LEAST = 1e-4


def _by_token(hidden, rounded, bytes_):
    """Groups of 128: the values times 448 over the largest magnitude, or times a power of two."""
    parts = epilogs.groups(hidden, epilogs.GROUP)
    top = parts.abs().where(parts.isfinite(), 0).amax(-1).clamp(min=_LEAST)
    limit = torch.finfo(torch.float8_e4m3fn).max
    scale = top * torch.tensor(1.0 / limit, dtype=torch.float32)
    factor = torch.full_like(top, limit) / top  # limit / top is limit * (1 / top) in PyTorch
    if rounded:
        bits = scale.view(torch.int32)
        exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).int()
        scale, factor = ((e << 23).view(torch.float32) for e in (exponent, 254 - exponent))
        if bytes_:
            scale = exponent.to(torch.uint8).view(torch.float8_e8m0fnu)
    scaled = parts * factor.unsqueeze(-1)
    values = torch.where(scaled.isfinite(), scaled, parts)
    return values.to(torch.float8_e4m3fn).flatten(1), scale


@ascend_op(
    "npu_swiglu_group_quant(Tensor x, Tensor? topk_weight, Tensor? group_index, "
    "ScalarType dst_type=39, int quant_mode=1, int group_size=128, bool round_scale=False, "
    "bool ue8m0_scale=False, bool output_origin=False, int group_list_type=0, "
    "float clamp_value=0.0) -> (Tensor y, Tensor scale, Tensor y_origin)"
)
def npu_swiglu_group_quant(
    x,
    topk_weight,
    group_index,
    dst_type,
    quant_mode,
    round_scale,
    ue8m0_scale,
    output_origin,
    clamp_value,
):
    """h = w silu(a) b of the halves a and b of the last dimension, quantized to 8-bit floats.

    A clamp_value c other than 0 takes min(a, c) and clamp(b, -c, c). `quant_mode` 1: a float32 scale for each 128
    elements; 2: MX, a power of two for each 32 elements of h in the dtype of x; 3: as 1, of float8_e4m3fn, with a scale
    of at least 1e-4 / 448, which `round_scale` makes a power of two. Rows past the sum of `group_index` are 0 here; the
    card leaves them as they were. h itself, if `output_origin` asks for it, comes with `quant_mode` 3.
    """
    a, b = wide(x).chunk(2, -1)
    if clamp_value != 0:
        a, b = a.clamp(max=clamp_value), b.clamp(-clamp_value, clamp_value)
    hidden = (a / (1 + torch.exp(-a)) * b).flatten(0, -2)
    if topk_weight is not None:
        hidden = hidden * topk_weight.float().reshape(-1, 1)
    shape = (*x.shape[:-1], x.shape[-1] // 2)
    if quant_mode == GROUPS:
        y, scale = epilogs.by_float(hidden, dst_type)
    elif quant_mode == MX:
        y, scale = _mx.quantize(hidden.to(x.dtype), str(dst_type).removeprefix("torch."))
        scale = scale.view(torch.float8_e8m0fnu)
    else:
        y, scale = _by_token(hidden, round_scale, ue8m0_scale)
    origin = torch.zeros(shape, dtype=x.dtype)
    if output_origin and quant_mode == TOKENS:
        origin = hidden.to(x.dtype).view(shape)
    if group_index is not None:
        used = (torch.arange(hidden.shape[0]) < group_index.sum()).view(-1, 1)
        y = torch.where(used, y.view(torch.uint8), 0).view(y.dtype)
        kept = used.view(-1, *(1 for _ in scale.shape[1:]))
        if scale.dtype == torch.float32:
            scale = torch.where(kept, scale, 0)
        else:
            scale = torch.where(kept, scale.view(torch.uint8), 0).view(scale.dtype)
        origin = torch.where(used.view(*shape[:-1], 1), origin, 0)
    return y.view(shape), scale.view(*shape[:-1], *scale.shape[1:]), origin


@npu_swiglu_group_quant.meta
def _(x, dst_type, quant_mode, ue8m0_scale):
    shape = (*x.shape[:-1], x.shape[-1] // 2)
    if quant_mode == MX:
        scale = x.new_empty((*shape[:-1], _mx.pairs(shape[-1]), 2), dtype=torch.float8_e8m0fnu)
    else:
        byte = quant_mode == TOKENS and ue8m0_scale
        kind = torch.float8_e8m0fnu if byte else torch.float32
        scale = x.new_empty((*shape[:-1], -(-shape[-1] // epilogs.GROUP)), dtype=kind)
    return x.new_empty(shape, dtype=dst_type), scale, x.new_empty(shape)


@npu_swiglu_group_quant.check
def _(x, topk_weight, group_index, dst_type, quant_mode, group_size, **rest):
    must.anything(group_size, rest["output_origin"], rest["clamp_value"])
    must.dtype("x", x, torch.float16, torch.bfloat16)
    must.choice("quant_mode", quant_mode, (GROUPS, MX, TOKENS))
    multiple = 128 if quant_mode == MX else 256
    must.ndim("x", x, 2, 8)
    must.hold(x.shape[-1] % multiple == 0, "x",
              f"of a last dimension divisible by {multiple}", tuple(x.shape))  # fmt: skip
    must.choice("dst_type", dst_type, _FLOAT8 if quant_mode != TOKENS else _FLOAT8[1:])
    must.choice("group_list_type", rest["group_list_type"], (0,))
    if quant_mode == TOKENS and rest["ue8m0_scale"]:
        must.hold(rest["round_scale"], "round_scale", "True with 'ue8m0_scale'", False)
    must.dtype("topk_weight", topk_weight, torch.float32)
    if topk_weight is not None:
        rows = x.numel() // x.shape[-1]
        must.hold(topk_weight.numel() == rows, "topk_weight", f"of {rows} elements",
                  topk_weight.numel())  # fmt: skip
    must.dtype("group_index", group_index, torch.int64)
    must.ndim("group_index", group_index, 1)
