"""_npu_rotary_embedding: queries and keys rotated by their positions, in place."""

from __future__ import annotations

import torch

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
        query: (tokens, heads * R), float16, bfloat16 or float32, written.
        key: (tokens, kv_heads * R), the dtype of `query`, written.
        head_size: the elements of a head, at least R.
        cos_sin_cache: (positions, R), the cosines and then the sines of R / 2 angles.
        is_neox_style: whether halves are rotated, not pairs.

    Returns:
        Nothing.

    Differs from upstream: `cos_sin_cache` is read in each call. Upstream keeps the one of the first call of the
    process and uses it ever after.
    """
    cos, sin = wide(cos_sin_cache[positions.flatten()]).chunk(2, -1)
    for tensor in (query, key):
        heads = wide(tensor.reshape(tensor.shape[0], -1, cos_sin_cache.shape[1]))
        tensor.copy_(_rotate(heads, cos, sin, is_neox_style).view(tensor.shape))


def _rotate(heads, cos, sin, halves):
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    a, b = heads.chunk(2, -1) if halves else (heads[..., ::2], heads[..., 1::2])
    pair = (a * cos - b * sin, b * cos + a * sin)
    return torch.cat(pair, -1) if halves else torch.stack(pair, -1).flatten(-2)


@_npu_rotary_embedding.check
def _(positions, query, key, head_size, cos_sin_cache):
    rules.family("query", "A2", "A3", "310P", "910A")
    must.dtype("positions", positions, torch.int32, torch.int64)
    must.dtype("query", query, *rules.FLOATS, torch.float32)
    must.same_dtype("key", key, "query", query)
    must.dtype("cos_sin_cache", cos_sin_cache, *rules.FLOATS, torch.float32)
    must.ndim("cos_sin_cache", cos_sin_cache, 2)
    angles = cos_sin_cache.shape[1]
    must.hold(angles % 2 == 0, "cos_sin_cache", "of an even number of columns", angles)
    expected = f"at least {angles}, the columns of 'cos_sin_cache'"
    must.hold(head_size >= angles, "head_size", expected, head_size)
    tokens = positions.numel()
    for name, tensor in (("query", query), ("key", key)):
        must.ndim(name, tensor, 2, 3)
        fits = tensor.shape[0] == tokens and (tensor.numel() // max(1, tokens)) % angles == 0
        expected = f"of {tokens} tokens with a multiple of {angles} elements"
        must.hold(fits, name, expected, tuple(tensor.shape))
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
