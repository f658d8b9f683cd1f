"""What npu_all_gather_base_mm and npu_mm_reduce_scatter_base share: constraints, types, the product."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu.ops import _check as must
from torch_npu.ops._shared._gemm import int_product, product
from torch_npu.ops._shared._scales import PACKED, scale_of
from torch_npu.ops.comm import _group

_FEW_RANKS = (2, 4, 8)
_MORE_RANKS = (2, 4, 8, 16, 32)
_SHORTEST, _LONGEST = 256, 65535
COMM_MODES = (None, "ai_cpu", "aiv")
_COMM_MODES_950 = (None, "ai_cpu", "ccu")


def check_operands(
    x1, x2, hcom, world_size, bias, x1_scale, x2_scale, comm_turn, output_dtype, comm_mode, gathers
):
    """The constraints of both operators; `x1` is called self in the schemas, `gathers`: all gather."""
    family = chips.current().family
    integers = () if family == "A5" else (torch.int8,)
    must.dtype("self", x1, torch.float16, torch.bfloat16, *integers)
    must.ndim("self", x1, 2)
    must.hold(not _transposed(x1), "self", "contiguous rather than a transposed view", x1.stride())
    must.same_dtype("x2", x2, "self", x1)
    must.shape("x2", x2, (x1.shape[1], None))
    k = x1.shape[1]
    vector = gathers and comm_mode == "aiv"
    if not vector:
        must.hold(_SHORTEST <= k < _LONGEST, "self", f"of k in [{_SHORTEST}, {_LONGEST})", k)
    _check_view(x2, vector)
    few = family == "A2" or vector
    must.choice("world_size", world_size, _FEW_RANKS if few else _MORE_RANKS)
    _group.check_name("hcom", hcom, "world_size", world_size)
    must.same_dtype("bias", bias, "self", x1)
    must.shape("bias", bias, (x2.shape[1],))
    must.unset("comm_turn", comm_turn, 0)
    must.choice("comm_mode", comm_mode, _COMM_MODES_950 if family == "A5" else COMM_MODES)
    if x1.dtype == torch.int8:
        must.hold(comm_mode == "aiv", "comm_mode", "'aiv' for int8 operands", repr(comm_mode))
        must.present("x2_scale", x2_scale, "for int8 operands")
        must.dtype("x1_scale", x1_scale, torch.float32)
        must.shape("x1_scale", x1_scale, (x1.shape[0], 1))
        must.dtype("x2_scale", x2_scale, torch.float32, torch.int64)
        must.shape("x2_scale", x2_scale, (1, x2.shape[1]))
        wider = () if x2_scale.dtype == torch.int64 else (torch.bfloat16,)
        allowed = (None, *wider, torch.float16)
        must.choice("output_dtype", output_dtype, allowed)
    else:
        must.unset("x1_scale", x1_scale)
        must.unset("x2_scale", x2_scale)
        must.choice("output_dtype", output_dtype, (None, x1.dtype))


def _transposed(x: torch.Tensor) -> bool:
    """Whether a matrix is a transposed view of a contiguous one (and not contiguous itself)."""
    return not x.is_contiguous() and x.t().is_contiguous()


def _check_view(x2: torch.Tensor, vector: bool) -> None:
    """A2 takes x2 in one piece, either way (but for all gather on vector cores)."""
    if chips.current().family == "A2" and not vector:
        whole = x2.is_contiguous() or x2.t().is_contiguous()
        must.hold(whole, "x2", "contiguous, or the transposed view of such", x2.stride())


def result_dtype(x1, x2_scale, output_dtype):
    """The type of the product: that of x1, or as quantized operands have it."""
    if x2_scale is None:
        return x1.dtype
    if x2_scale.dtype in PACKED:
        return torch.float16
    return torch.bfloat16 if output_dtype is None else output_dtype


def scaled_product(x1, x2, bias, x1_scale, x2_scale):
    """(x1 @ x2 + bias), scaled for int8 operands; in fp32."""
    if x1.dtype != torch.int8:
        total = product(x1, x2)
        return total if bias is None else total + bias.to(total.dtype)
    total = int_product(x1, x2)
    if bias is not None:
        total = total + bias
    total = total.float() * scale_of(x2_scale)
    return total if x1_scale is None else total * x1_scale
