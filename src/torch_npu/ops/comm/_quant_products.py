"""What npu_all_gather_quant_mm and npu_quant_mm_reduce_scatter share: the forms of quantized operands, their product.

Forms, by aclnnAllGatherMatmulV2 and aclnnMatmulReduceScatterV2: float16 and bfloat16 without scales; 8-bit floats with one
scale a matrix; int8 with a scale a row and a column; 8-bit floats with a scale for each block of 128 x 128; 8-bit and
4-bit floats with powers of two for 32 depths (microscaling).
"""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._shared import _mx_matmul as _mx
from torch_npu.ops._shared._gemm import (
    dtype_of,
    int_product,
    product,
    restored,
    stand_in,
    torch_dtype,
)
from torch_npu.ops._shared._scales import scale_of
from torch_npu.ops.comm import _group
from torch_npu.ops.matmul.npu_quant_matmul import block_product

RANKS, FEW_RANKS = (2, 4, 8, 16, 32, 64), (2, 4, 8)
_HALF = (torch.float16, torch.bfloat16)
_RESULTS = (*_HALF, torch.float32)
_BLOCK = 128


def _blocks(size: int) -> int:
    return -(-size // _BLOCK)


def result_dtype(call) -> torch.dtype:
    return call["self"].dtype if call["self"].dtype in _HALF else torch_dtype(call["y_dtype"])


def by_blocks(call) -> bool:
    scale = call["x2_scale"]
    return (
        scale is not None
        and scale.dim() == 2
        and not _mx.asked(call["x2_scale_dtype"], scale)
        and (call["self"].dtype != torch.int8)
    )


def gathered_scale(group: _group.Group, call) -> torch.Tensor | None:
    """The scale of the gathered x1: of rows and blocks all ranks', of a whole matrix this rank's."""
    scale = call["x1_scale"]
    if scale is None or scale.dim() == 1:
        return scale
    if by_blocks(call):  # the blocks of a rank end with its rows
        scale = scale.repeat_interleave(_BLOCK, 0)[: call["self"].shape[0]]
    if scale.dtype == torch.float8_e8m0fnu:
        return group.all_gather(scale.view(torch.uint8)).view(scale.dtype)
    return group.all_gather(scale)


def scaled_product(
    call, x1: torch.Tensor, x1_scale: torch.Tensor | None, inside: bool
) -> torch.Tensor:
    """The product of x1 (gathered or not) with x2 in fp32, scaled, with the bias: `inside` adds it before one scale a
    matrix or a row scales, as the gathering operator does."""
    x2, bias, x2_scale = call["x2"], call["bias"], call["x2_scale"]
    if x1.dtype in _HALF:
        y = product(x1, x2)
    elif _mx.asked(call["x2_scale_dtype"], x2_scale):
        assert x1_scale is not None
        left = _mx.left(x1, call["x1_dtype"], x1_scale)
        y = product(left, _mx.right(x2, call["x2_dtype"], x2_scale))
    else:
        x1, x2 = restored(x1, call["x1_dtype"]), restored(x2, call["x2_dtype"])
        if by_blocks(call):
            y = block_product(x1, x2, x1_scale, x2_scale, None, (_BLOCK, _BLOCK, _BLOCK))
        else:
            y = (int_product(x1, x2) if x1.dtype == torch.int8 else product(x1, x2)).float()
            if inside and bias is not None:
                y, bias = y + bias.to(y.dtype), None
            y = y * scale_of(x2_scale)
            y = y if x1_scale is None else y * x1_scale
    return y if bias is None else y + bias.to(y.dtype)


def check(call) -> None:
    """The constraints of both operators."""
    x1, x2, world_size = call["self"], call["x2"], call["world_size"]
    must.choice("world_size", world_size, FEW_RANKS if call["comm_mode"] == "aiv" else RANKS)
    _group.check_name("hcom", call["hcom"], "world_size", world_size)
    must.ndim("self", x1, 2)
    must.ndim("x2", x2, 2)
    must.unset("block_size", call["block_size"], 0)
    must.unset("comm_turn", call["comm_turn"], 0)
    must.unset("quant_scale", call["quant_scale"])
    must.unset("amax_output", call["amax_output"], False)
    must.choice("comm_mode", call["comm_mode"], (None, "ai_cpu", "aiv", "ccu"))
    if x1.dtype in _HALF:
        must.same_dtype("x2", x2, "self", x1)
        must.shape("x2", x2, (x1.shape[1], None))
        for name in (
            "x1_scale",
            "x2_scale",
            "x1_dtype",
            "x2_dtype",
            "x1_scale_dtype",
            "x2_scale_dtype",
        ):
            must.unset(name, call[name])
        must.choice("y_dtype", dtype_of(call["y_dtype"], x1.dtype), (x1.dtype,))
        groups(call, (None,))
    else:
        must.present("y_dtype", call["y_dtype"], "where 'self' is neither float16 nor bfloat16")
        must.choice("y_dtype", dtype_of(call["y_dtype"], None), _RESULTS)
        must.present("x2_scale", call["x2_scale"], "for quantized operands")
        _check_quantized(call, x1, x2)
    bias = call["bias"]
    columns = _mx.shape(x2, call["x2_dtype"])[1]
    must.dtype("bias", bias, *_RESULTS)
    must.shape("bias", bias, (columns,))
    if by_blocks(call):
        must.hold(bias is None, "bias", "None with scales by blocks", "a tensor")


def groups(call, allowed) -> None:
    given = call["group_sizes"]
    must.choice("group_sizes", None if given is None else tuple(given), allowed)


def _check_quantized(call, x1, x2) -> None:
    codes = call["x1_scale_dtype"], call["x2_scale_dtype"]
    x1_scale, x2_scale = call["x1_scale"], call["x2_scale"]
    if _mx.asked(codes[1], x2_scale) or _mx.asked(codes[0], x1_scale):
        _mx.check_chip("x2_scale_dtype" if codes[0] is None else "x1_scale_dtype")
        _mx.check_matrix("self", "x1_dtype", x1, call["x1_dtype"])
        _mx.check_matrix("x2", "x2_dtype", x2, call["x2_dtype"])
        (m, k), (depth, n) = _mx.shape(x1, call["x1_dtype"]), _mx.shape(x2, call["x2_dtype"])
        must.hold(depth == k, "x2", f"of a first size of {k}, as the columns of 'self'", depth)
        _mx.check_scale("x1_scale", "x1_scale_dtype", x1_scale, codes[0], (m, -(-k // 64), 2))
        _mx.check_scale("x2_scale", "x2_scale_dtype", x2_scale, codes[1], (-(-k // 64), n, 2))
        groups(call, (None, (1, 1, 32)))
        return
    must.unset("x1_scale_dtype", codes[0])
    must.unset("x2_scale_dtype", codes[1])
    must.shape("x2", x2, (x1.shape[1], None))
    (m, k), n = x1.shape, x2.shape[1]
    if x1.dtype == torch.int8 and call["x1_dtype"] is None:
        must.same_dtype("x2", x2, "self", x1)
        must.dtype("x1_scale", x1_scale, torch.float32)
        must.shape("x1_scale", x1_scale, (m, 1))
        must.dtype("x2_scale", x2_scale, torch.float32, torch.int64)
        must.shape("x2_scale", x2_scale, (1, n))
        groups(call, (None,))
        return
    family = chips.current().family
    must.hold(
        family == "A5", "self", "float16, bfloat16 or int8 on this chip", x1.dtype, ErrCode.TYPE
    )
    kinds = (torch.float8_e4m3fn, torch.float8_e5m2)
    must.dtype("self", stand_in("self", "x1_dtype", x1, call["x1_dtype"]), *kinds)
    must.dtype("x2", stand_in("x2", "x2_dtype", x2, call["x2_dtype"]), *kinds)
    must.present("x1_scale", x1_scale, "for 8-bit floats")
    must.dtype("x1_scale", x1_scale, torch.float32)
    must.dtype("x2_scale", x2_scale, torch.float32)
    if by_blocks(call):
        must.shape("x1_scale", x1_scale, (_blocks(m), _blocks(k)))
        must.shape("x2_scale", x2_scale, (_blocks(k), _blocks(n)))
        groups(call, (None, (_BLOCK, _BLOCK, _BLOCK)))
    else:
        must.shape("x1_scale", x1_scale, (1,))
        must.shape("x2_scale", x2_scale, (1,))
        groups(call, (None,))
