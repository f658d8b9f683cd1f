"""What `npu_moe_init_routing_v2` asks of tokens and scales, by chip and quantization mode."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu import _dtypes
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops.moe import _row_quant as quant

_PLAIN = (torch.float16, torch.bfloat16, torch.float32, torch.int8)
_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def modes(family):
    """The quantization modes of a product series."""
    if family == "A5":
        return quant.MODES
    return (quant.NONE,) if family == "310P" else (quant.NONE, quant.STATIC, quant.DYNAMIC)


def check_x(x, quant_mode, x_dtype):
    """The types of the tokens, by chip and mode."""
    family = chips.current().family
    coded = None if x_dtype is None else _dtypes.name(x_dtype)
    if quant_mode == quant.INT4:
        must.dtype("x", x, torch.float32, torch.bfloat16)
        must.hold(x.size(1) % 2 == 0, "x", "of an even number of columns", x.size(1))
        expected = "torch_npu.int4 or None when quant_mode=13"
        must.hold(coded in (None, "int4"), "x_dtype", expected, _dtypes.text(x_dtype))
        return
    if coded is not None:
        must.hold(
            coded != "int4", "x_dtype", "int4 only with quant_mode=13", f"quant_mode={quant_mode}"
        )
        allowed = ("hifloat8", "float4_e2m1fn_x2")
        fits = family == "A5" and quant_mode == quant.NONE and coded in allowed
        expected = "None, or on Ascend 950 without quantization hifloat8 or float4_e2m1fn_x2"
        must.hold(fits, "x_dtype", expected, _dtypes.text(x_dtype), ErrCode.TYPE)
        must.dtype("x", x, torch.uint8)
    elif quant_mode == quant.NONE:
        if family == "310P":
            must.dtype("x", x, torch.float16, torch.float32)
        else:
            must.dtype("x", x, *_PLAIN, *(_FLOAT8 if family == "A5" else ()))
    elif quant_mode == quant.DYNAMIC and family == "A5":
        must.dtype("x", x, *_PLAIN)
    elif quant_mode in (quant.STATIC, quant.DYNAMIC):
        must.dtype("x", x, *_PLAIN[:3])
    else:
        must.dtype("x", x, torch.float16, torch.bfloat16)


def check_newest(x, expert_idx, active_num, expert_tokens_num_flag, drop_pad_mode, quant_mode):
    """What Ascend950 asks besides: counts always, all rows, no quantization with capacities."""
    flag = expert_tokens_num_flag
    must.hold(flag, "expert_tokens_num_flag", "True on this chip", flag)
    whole = expert_idx.numel()
    fits = active_num in (-1, whole) or whole * x.size(1) == 0
    must.hold(fits, "active_num", f"-1 or {whole}, the number of 'expert_idx'", active_num)
    fits = drop_pad_mode == 0 or quant_mode == quant.NONE
    must.hold(fits, "quant_mode", "-1 with drop_pad_mode=1", quant_mode)


def check_scale(x, scale, offset, quant_mode, span, x_dtype):
    """`scale` and `offset` as the mode wants them; `span` experts are active."""
    if quant_mode in (quant.STATIC, quant.HIF8_TENSOR):
        must.present("scale", scale, f"with quant_mode={quant_mode}")
        must.shape("scale", scale, (1,))
    if quant_mode == quant.STATIC:
        must.present("offset", offset, "with quant_mode=0")
        must.dtype("offset", offset, torch.float32)
        must.shape("offset", offset, (1,))
    else:
        must.hold(offset is None, "offset", "None unless quant_mode=0", "a tensor")
    if scale is None or x.size(0) == 0:  # without tokens upstream does not look at the scale
        return
    if quant_mode == quant.NONE and (
        x.dtype in _FLOAT8 or x_dtype == _dtypes.CODES["float4_e2m1fn_x2"]
    ):
        columns = x.size(1) * (1 if x.dtype in _FLOAT8 else 2)
        must.dtype("scale", scale, torch.float8_e8m0fnu, torch.uint8)
        must.shape("scale", scale, (x.size(0), -(-columns // 64), 2))
        return
    must.dtype("scale", scale, torch.float32)
    if quant_mode == quant.NONE:
        must.shape("scale", scale, (x.size(0),))
    elif quant_mode in (quant.DYNAMIC, quant.INT4):
        must.ndim("scale", scale, 2)
        rows = (1, span) if quant_mode == quant.DYNAMIC else (1,)
        expected = f"of shape ({must.one_of(rows)}, {x.size(1)})"
        fits = scale.size(0) in rows and scale.size(1) == x.size(1)
        must.hold(fits, "scale", expected, tuple(scale.shape), ErrCode.PARAM)
