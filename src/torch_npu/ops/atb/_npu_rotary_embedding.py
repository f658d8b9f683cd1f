"""_npu_rotary_embedding: queries and keys rotated by their positions, in place."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _atb_rules as rules


@npu_op(
    "atb::_npu_rotary_embedding(Tensor positions, Tensor(a!) query, Tensor(b!) key, int head_size, "
    "Tensor cos_sin_cache, bool is_neox_style) -> ()",
    ge="Rope",
)
def _npu_rotary_embedding(positions, query, key, cos_sin_cache, is_neox_style):
    r"""Rotates each head of `query` and `key` by the angles of its position, in place.

    $$ (a, b) \to (a \cos - b \sin, \; b \cos + a \sin) $$

    where a and b are the halves of a head (`is_neox_style`) or its even and odd elements.

    Args:
        positions: the position of each token, int32 or int64, of any shape.
        query: (tokens, heads * R) or 4 dimensions of them, float16 or bfloat16, written.
        key: (tokens, kv_heads * R), the dtype of `query`, written; kv_heads is a divisor of heads.
        head_size: R where pairs are rotated; not read for halves.
        cos_sin_cache: (positions, R), the cosines and then the sines of R / 2 angles; the dtype of `query`, or
            float32 beside float16. R is 16 to 4096.
        is_neox_style: whether halves are rotated, not pairs.

    Returns:
        Nothing.

    Differs from upstream: `cos_sin_cache` is read in each call. Upstream keeps the one of the first call of the
    process and uses it ever after.
    """
    cos, sin = wide(cos_sin_cache[positions.flatten()]).chunk(2, -1)
    for tensor in (query, key):
        heads = wide(tensor.reshape(positions.numel(), -1, cos_sin_cache.shape[1]))
        tensor.copy_(_rotate(heads, cos, sin, is_neox_style).view(tensor.shape))


def _rotate(heads, cos, sin, halves):
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    a, b = heads.chunk(2, -1) if halves else (heads[..., ::2], heads[..., 1::2])
    pair = (a * cos - b * sin, b * cos + a * sin)
    return torch.cat(pair, -1) if halves else torch.stack(pair, -1).flatten(-2)


@_npu_rotary_embedding.check
def _(positions, query, key, head_size, cos_sin_cache, is_neox_style):
    rules.family("query", "A2", "A3", "A5", "310P", "910A")
    must.dtype("positions", positions, torch.int32, torch.int64)
    must.dtype("query", query, *rules.FLOATS)
    must.same_dtype("key", key, "query", query)
    ascend950 = chips.current().family == "A5"
    wide = (torch.float32,) if query.dtype == torch.float16 and not ascend950 else ()
    must.dtype("cos_sin_cache", cos_sin_cache, query.dtype, *wide)
    must.ndim("cos_sin_cache", cos_sin_cache, 2)
    angles = cos_sin_cache.shape[1]
    must.hold(angles % 2 == 0, "cos_sin_cache", "of an even number of columns", angles)
    fits = ascend950 or 16 <= angles <= 4096
    must.hold(fits, "cos_sin_cache", "of 16 to 4096 columns", angles)
    if not is_neox_style:
        expected = f"{angles}, the columns of 'cos_sin_cache', where pairs are rotated"
        must.hold(head_size == angles, "head_size", expected, head_size)
    tokens, widths = positions.numel(), []
    for name, tensor in (("query", query), ("key", key)):
        must.hold(tensor.dim() in (2, 4), name, "of 2 or 4 dimensions", tuple(tensor.shape))
        rules.written(name, tensor)
        rows = tensor.shape[0] if tensor.dim() == 2 else tensor.shape[0] * tensor.shape[1]
        widths.append(tensor.numel() // max(1, rows))
        fits = rows == tokens and widths[-1] % angles == 0
        expected = f"of {tokens} tokens with a multiple of {angles} elements"
        must.hold(fits, name, expected, tuple(tensor.shape))
    if tokens:
        fits = widths[1] > 0 and widths[0] % widths[1] == 0
        expected = f"of a divisor of the elements of 'query' ({widths[0]}) a token"
        must.hold(fits, "key", expected, widths[1])
    if must.has_data(positions) and tokens:
        low, high = (int(edge) for edge in positions.aminmax())
        rows = cos_sin_cache.shape[0]
        expected = f"from 0 to {rows - 1}, the rows of 'cos_sin_cache'"
        must.hold(low >= 0 and high < rows, "positions", expected, low if low < 0 else high)


@_npu_rotary_embedding.meta
def _():
    return None


_npu_rotary_embedding.samples = [
    Sample(
        lambda make, neox=neox: (
            make(5, dtype=torch.int64, low=0, high=9),
            make(5, 32, dtype=torch.float16),
            make(5, 16, dtype=torch.float16),
            16,
            make(9, 16, dtype=torch.float16),
            neox,
        )
    )
    for neox in (True, False)
]
