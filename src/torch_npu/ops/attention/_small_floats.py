"""float8, hifloat8 and float4 in the fused inference attention of Ascend950: formats and factors.

| modes (query, key, value) | query | one factor for |
|---|---|---|
| -, 0, 0 | half | a channel of a float8_e4m3fn or hifloat8 cache |
| -, 1, 1 and -, 4, 4 | half | a token of a float8_e4m3fn cache; in pages |
| -, 6, 6 | half | 32 values of a token of a float4_e2m1 cache, float8_e8m0fnu |
| 3, 0, 0 | float8_e4m3fn, hifloat8 | a query token and head, a cache; with rope halves |
| 3, 3, 2 | float8_e4m3fn | a query token and head, a key token and head in pages, a value head |
| 7, 7, 7 | float8_e4m3fn, hifloat8 | 128 query tokens, 256 key tokens, of a head |

Source: CANN's fused_infer_attention_score, op_host/checkers/dequant_checker.cpp. The card also
rounds the exponentials to the small format, block by block and with its own factor; here they stay
fp32.
"""

from __future__ import annotations

import torch

from torch_npu import _dtypes
from torch_npu.ops._shared import _formats
from torch_npu.ops.attention._infer_arguments import InferArguments, kv_lengths

TOKEN_GROUP, BLOCKS = 6, 7

#: tokens that share a factor in mode 7, of the query and of the caches
Q_BLOCK, KV_BLOCK = 128, 256

#: values that share a factor in mode 6
GROUP = 32

_KNOWN = ("float8_e4m3fn", "hifloat8", "float4_e2m1fn_x2")


def format_of(tensor: torch.Tensor, code: int | None) -> str:
    """The small format of a tensor, by its dtype or the number given for it; "" for another."""
    name = _dtypes.name(tensor.dtype if code is None else code)
    return name if name in _KNOWN else ""


def raw(tensor: torch.Tensor) -> torch.Tensor:
    """float4 as the bytes that hold two of them; every other tensor as it is."""
    return tensor.view(torch.uint8) if tensor.dtype in _dtypes.FLOAT4 else tensor


def decoded(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """The values in fp32; a tensor of no small format as it is."""
    return _formats.decode(tensor, name).float() if name else tensor


def group_factors(scale: torch.Tensor) -> torch.Tensor:
    """(1, B, N, S, D / 32) of mode 6 as (B, N, S, D)."""
    return scale.squeeze(0).float().repeat_interleave(GROUP, -1)


def block_factors(call: InferArguments, scale: torch.Tensor, which: str) -> torch.Tensor:
    """The factors of mode 7 as (B, N, S, 1); ragged ones lie at start / size + sequence."""
    size = Q_BLOCK if which == "query" else KV_BLOCK
    if not call.ragged:
        return scale.repeat_interleave(size, 2)
    lengths = _query_lengths(call) if which == "query" else kv_lengths(call)
    parts, start = [], 0
    for index, length in enumerate(lengths):
        first = start // size + index
        blocks = scale[:, first : first + -(-length // size), 0]
        parts.append(blocks.repeat_interleave(size, 1)[:, :length])
        start += length
    return torch.cat(parts, 1)[None, :, :, None]


def _query_lengths(call: InferArguments) -> list[int]:
    ends = list(call.actual_seq_lengths or ())
    return [b - a for a, b in zip([0, *ends[:-1]], ends, strict=True)]
