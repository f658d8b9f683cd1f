"""npu_mrope: rotary embedding from a table, for one position a token or, multimodal, several."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._floats import vector_floats
from torch_npu.ops._shared._indices import inside

SECTIONS = ([16, 24, 24], [24, 20, 20], [8, 12, 12], [16, 16, 16, 16])


def _plain(mrope_section):
    """Whether the sections ask for the ordinary embedding."""
    return mrope_section is None or not any(mrope_section)


def _angles(positions, cos_sin_cache, sections, cache_mode):
    """cos and sin of each token, of shape (tokens, 1, rotary_dim / 2)."""
    table = wide(cos_sin_cache)[positions.long()]
    if positions.dim() == 2:
        if 2 * sum(sections) != table.shape[-1]:
            raise RuntimeError(
                f"npu_mrope: mrope_section {list(sections)} does not divide {table.shape[-1]} columns"
            )
        if cache_mode == "interleave":
            owner = [c % 3 if c < 3 * sections[1] else 0 for c in range(sum(sections))]
        else:
            owner = [index for index, count in enumerate(sections) for _ in range(count)]
        owners = torch.tensor(owner + owner, device=table.device)
        table = table.gather(0, owners.expand(1, *table.shape[1:])).squeeze(0)
    cos, sin = table.chunk(2, -1)
    return cos.unsqueeze(1), sin.unsqueeze(1)


def _rotated(tensor, cos, sin, head_size, half):
    turned = 2 * cos.shape[-1]
    x = wide(tensor).reshape(tensor.shape[0], tensor.shape[1] // head_size, head_size)
    x, rest = x[..., :turned], x[..., turned:]
    a, b = x.chunk(2, -1) if half else (x[..., ::2], x[..., 1::2])
    a, b = a * cos - b * sin, b * cos + a * sin
    x = torch.cat((a, b), -1) if half else torch.stack((a, b), -1).flatten(-2)
    return torch.cat((x, rest), -1).reshape(tensor.shape).to(tensor.dtype)


@npu_op(
    "npu_mrope(Tensor positions, Tensor query, Tensor key, Tensor cos_sin_cache, int head_size, *,"
    " int[]? mrope_section=None, str? rotary_mode='half', str? cache_mode='default')"
    " -> (Tensor, Tensor)"
)
def npu_mrope(
    positions, query, key, cos_sin_cache, head_size, mrope_section, rotary_mode, cache_mode
):
    r"""Rotates query and key by the angles that a table holds for the tokens' positions.

    $$ (\cos, \sin) = \mathrm{table}[\mathrm{positions}], \qquad
       a' = a \cos - b \sin, \quad b' = b \cos + a \sin $$

    where (a, b) are the halves of the first rotary_dim elements of each head ("half") or its even
    and odd elements ("interleave"). With `mrope_section` a token has several positions (time,
    height, width): the columns of the table are shared out among them, section by section
    ("default") or in turn ("interleave": column c below 3 * mrope_section[1] belongs to position
    c mod 3, the others to the first).

    Args:
        positions: (tokens,), or (sections, tokens) with `mrope_section`; int32 or int64.
        query: (tokens, heads * head_size); float16, bfloat16 or float32.
        key: (tokens, key heads * head_size), in the dtype of `query`.
        cos_sin_cache: (max_seq_len, rotary_dim), cos in its first half and sin in its second; in
            the dtype of `query`; rotary_dim is at most `head_size`.
        head_size: a multiple of 32, for float32 of 16; so is rotary_dim.
        mrope_section: None or [0, 0, 0] for one position a token; otherwise [16, 24, 24],
            [24, 20, 20], [8, 12, 12] or [16, 16, 16, 16], with the sum rotary_dim / 2.
        rotary_mode: "half" or "interleave"; None for "half".
        cache_mode: "default" or "interleave" (not with four sections); None for "default".

    Returns:
        The rotated query and key, new tensors.

    Differs from upstream: the page calls the second rotary mode "interleaved"; upstream's operator,
    its tests and this one know it as "interleave".
    """
    cos, sin = _angles(positions, cos_sin_cache, mrope_section, cache_mode)
    half = rotary_mode != "interleave"
    return tuple(_rotated(tensor, cos, sin, head_size, half) for tensor in (query, key))


@npu_mrope.check
def _(positions, query, key, cos_sin_cache, head_size, mrope_section, rotary_mode, cache_mode):
    must.dtype("positions", positions, torch.int32, torch.int64)
    must.dtype("query", query, *vector_floats())
    multiple = 16 if query.dtype == torch.float32 else 32
    for name, tensor in (("query", query), ("key", key), ("cos_sin_cache", cos_sin_cache)):
        must.same_dtype(name, tensor, "query", query)
        must.ndim(name, tensor, 2)
    must.hold(
        head_size > 0 and head_size % multiple == 0,
        "head_size",
        f"a multiple of {multiple} for {query.dtype}",
        head_size,
    )
    must.shape("key", key, (query.shape[0], None))
    for name, tensor in (("query", query), ("key", key)):
        whole = tensor.shape[1] % head_size == 0
        must.hold(whole, name, f"whole heads of {head_size} wide", tuple(tensor.shape))
    turned = cos_sin_cache.shape[1]
    must.hold(
        turned <= head_size and turned % multiple == 0,
        "cos_sin_cache",
        f"a multiple of {multiple} wide, and at most head_size ({head_size})",
        tuple(cos_sin_cache.shape),
    )
    must.choice("rotary_mode", rotary_mode, ("half", "interleave", None))
    words = "cache_mode only support default or interleave"
    must.choice("cache_mode", cache_mode, ("default", "interleave", None), upstream=words)
    inside("positions", positions, cos_sin_cache.shape[0])
    if _plain(mrope_section):
        must.shape("positions", positions, (query.shape[0],))
        return
    sections = list(mrope_section)
    must.choice("mrope_section", sections, SECTIONS)
    must.shape("positions", positions, (len(sections), query.shape[0]))
    must.hold(
        2 * sum(sections) == turned,
        "mrope_section",
        f"of the sum {turned // 2} (half of the width of 'cos_sin_cache')",
        sections,
    )
    if len(sections) == 4:
        must.choice("cache_mode", cache_mode, ("default", None))


npu_mrope.samples = [
    Sample(
        lambda make: (
            make(5, dtype=torch.int64, low=0, high=9),
            make(5, 64),
            make(5, 32),
            make(9, 16),
            32,
        )
    ),
    Sample(
        lambda make: (
            make(3, 5, dtype=torch.int32, low=0, high=9),
            make(5, 128),
            make(5, 64),
            make(9, 64),
            64,
        ),
        {"mrope_section": [8, 12, 12], "rotary_mode": "interleave", "cache_mode": "interleave"},
    ),
    Sample(
        lambda make: (
            make(4, 5, dtype=torch.int64, low=0, high=9),
            make(5, 256, dtype=torch.float16),
            make(5, 128, dtype=torch.float16),
            make(9, 128, dtype=torch.float16),
            128,
        ),
        {"mrope_section": [16, 16, 16, 16]},
    ),
]
