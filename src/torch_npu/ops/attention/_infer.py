"""From arguments to an attention problem and back: what the inference attentions share.

`solve` gathers pages, dequantizes caches, appends rope halves and prefixes, turns lengths and
sparse modes into segments and windows, hands the `_engine.Problem` to an engine and quantizes the
output.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from softnpu import settings
from torch_npu import _errors
from torch_npu.ops._math import wide
from torch_npu.ops._shared._engine import FAR, IntegerProducts, Problem, Segment, natively
from torch_npu.ops.attention import _paged, _quantized
from torch_npu.ops.attention import _small_floats as small
from torch_npu.ops.attention._infer_arguments import (
    BAND,
    DEFAULT,
    LAYOUTS,
    LEFT_UP,
    RIGHT_DOWN,
    TEMPLATE,
    TREE,
    InferArguments,
    as_bnsd,
    each,
    empty_outputs,
    kv_lengths,
    prefix_length,
    spans,
)


def solve(
    call: InferArguments, engine: Callable[[Problem], None]
) -> tuple[torch.Tensor, torch.Tensor]:
    """attention_out and softmax_lse."""
    try:
        return _solve(call, engine)
    except _errors.BadArgument as bad:  # what only values tell: block numbers, the template
        raise _errors.operator_error(call.operator, bad) from None


def _solve(
    call: InferArguments, engine: Callable[[Problem], None]
) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse = empty_outputs(call)
    query = _query(call)
    key, value, pages = _pages(call, query, out, engine) or (*_caches(call), None)
    dtype = torch.float64 if call.query.dtype == torch.float64 else torch.float32
    if query.is_floating_point() and query.dtype == key.dtype == value.dtype == out.dtype:
        dtype = query.dtype
    query = query if query.dtype == torch.int8 else query.to(dtype)
    key, value = (c if c.dtype == torch.int8 else c.to(dtype) for c in (key, value))
    result = as_bnsd(out, LAYOUTS[call.input_layout][1], call.num_heads)
    direct = out.dtype == dtype
    buffer = result.zero_() if direct else result.new_zeros(result.shape, dtype=dtype)
    logs = None
    if call.softmax_lse_flag:
        logs = lse.new_full(buffer.shape[:3], torch.inf)
    problem = Problem(
        query,
        key,
        value,
        buffer,
        [],
        call.scale,
        logs,
        integer=_integer(call),
        pages=pages,
    )
    problem.segments = _segments(call, problem.columns)
    problem.sink = call.learnable_sink
    if out.numel() and problem.columns:
        for part in _parts(call, problem):
            engine(part)
    if call.quant_scale2 is not None:
        buffer = _quantized.quantize(buffer, call.quant_scale2, call.quant_offset2, out.dtype)
    if not direct:
        result.copy_(buffer)
    if logs is None:
        return out, lse.zero_()
    logs = logs[0].mT if call.ragged else logs
    return out, lse.copy_(logs.unsqueeze(-1))


# --- query, key and value as (B, N, S, D) -------------------------------------------------------


def _query(call: InferArguments) -> torch.Tensor:
    query = small.decoded(as_bnsd(call.query, call.layout, call.num_heads), call.query_format)
    if call.dequant_scale_query is not None:
        query = query.float() * _query_factors(call, call.dequant_scale_query, query.shape[2])
    if call.query_rope is None:
        return query
    rope = as_bnsd(call.query_rope, call.layout, call.num_heads)
    return torch.cat((query, rope.to(query.dtype)), -1)


def _query_factors(call: InferArguments, scale: torch.Tensor, rows: int) -> torch.Tensor:
    if call.query_quant_mode == small.BLOCKS:
        return small.block_factors(call, scale, "query")[:, :, :rows]
    return _quantized.token_heads(scale, call.layout)


def _block_ids(call: InferArguments) -> torch.Tensor | None:
    if call.block_table is None:
        return None
    blocks = call.key.shape[0]
    return _paged.block_ids(
        call.block_table[: call.batch], kv_lengths(call), call.block_size, blocks
    )


def _pages(
    call: InferArguments, query: torch.Tensor, out: torch.Tensor, engine: Callable[[Problem], None]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """Key, value and block numbers for the C++ kernel, which reads plain caches where they lie."""
    if engine is not natively or call.block_table is None or call.dequant_scale1 is not None:
        return None
    if call.key_rope is not None or call.key_shared_prefix is not None:
        return None
    plain = query.dtype == call.key.dtype == call.value.dtype == out.dtype
    if (
        not plain
        or not query.is_floating_point()
        or any(scales(call, i)[0] is not None for i in (0, 1))
    ):
        return None
    key, value = (_paged.in_place(c, call.kv_heads) for c in (call.key, call.value))
    ids = _block_ids(call)
    return None if key is None or value is None or ids is None else (key, value, ids)


def _caches(call: InferArguments) -> tuple[torch.Tensor, torch.Tensor]:
    ids = _block_ids(call)
    key = _cache(call, call.key, call.key_shared_prefix, 0, ids)
    value = _cache(call, call.value, call.value_shared_prefix, 1, ids)
    if call.key_rope is not None:
        key = torch.cat((key, _dense(call, call.key_rope, ids).to(key.dtype)), -1)
    return key, value


def _cache(
    call: InferArguments,
    cache: torch.Tensor,
    prefix: torch.Tensor | None,
    which: int,
    ids: torch.Tensor | None,
) -> torch.Tensor:
    """Key (`which` 0) or value (1): pages gathered, the prefix in front, integers made floats."""
    name = call.value_format if which else call.key_format
    dense = small.decoded(_quantized.values(_dense(call, cache, ids)), name)
    if prefix is not None:
        shared = _quantized.values(as_bnsd(prefix, call.layout, call.kv_heads))
        shared = shared[:, :, : prefix_length(call)].expand(dense.shape[0], -1, -1, -1)
        dense = torch.cat((shared, dense), 2)
    scale, offset, mode = scales(call, which)
    if scale is None:
        return dense
    offset = None if offset is None else _stretch(call, offset, mode, ids)
    return _quantized.dequantize(dense, _stretch(call, scale, mode, ids), offset)


def _dense(call: InferArguments, cache: torch.Tensor, ids: torch.Tensor | None) -> torch.Tensor:
    if ids is None:
        return as_bnsd(cache, call.layout, call.kv_heads)
    return _paged.gather(cache, ids, call.kv_heads)


def _stretch(
    call: InferArguments, scale: torch.Tensor, mode: int, ids: torch.Tensor | None
) -> torch.Tensor:
    if mode in (_quantized.PAGED_TOKEN, _quantized.PAGED_TOKEN_HEAD):
        assert ids is not None
        return wide(_paged.gather_scales(scale, ids))
    if call.query_format and mode == _quantized.PER_TOKEN_HEAD:
        assert ids is not None
        return wide(_paged.gather_scales(scale, ids))
    if mode == small.TOKEN_GROUP:
        return small.group_factors(scale)
    if mode == small.BLOCKS:
        return small.block_factors(call, scale, "key")
    return _quantized.stretch(scale, mode, call.kv_heads)


def scales(
    call: InferArguments, which: int
) -> tuple[torch.Tensor | None, torch.Tensor | None, int]:
    """(scale, offset, mode) of key (0) or value (1): its own, or its half of the common ones."""
    if call.key_antiquant_scale is not None:
        if which == 0:
            return call.key_antiquant_scale, call.key_antiquant_offset, call.key_antiquant_mode
        return call.value_antiquant_scale, call.value_antiquant_offset, call.value_antiquant_mode
    if call.antiquant_scale is None:
        return None, None, 0
    offset = None if call.antiquant_offset is None else call.antiquant_offset[which]
    return call.antiquant_scale[which], offset, 0 if not call.decode else call.antiquant_mode


def _integer(call: InferArguments) -> IntegerProducts | None:
    first, middle, last = call.dequant_scale1, call.quant_scale1, call.dequant_scale2
    if first is None:
        return None
    assert middle is not None and last is not None  # given together
    return IntegerProducts(*(_quantized.scalar(f) for f in (first, middle, last)))


# --- lengths, windows and masks -----------------------------------------------------------------


def _segments(call: InferArguments, columns: int) -> list[Segment]:
    found = []
    for (q_start, q_length), (kv_start, kv_length) in zip(
        _query_spans(call), _key_spans(call, columns), strict=True
    ):
        low, high = _window(call, q_length, kv_length)
        found.append(Segment(q_start, q_length, kv_start, kv_length, low, high))
    return found


def _query_spans(call: InferArguments) -> list[tuple[int, int]]:
    lengths, rows = call.actual_seq_lengths, call.queries[2]
    if call.ragged:
        return spans(lengths)
    if lengths is None or call.decode:
        return [(0, rows)] * call.batch
    lengths = each(lengths, call.batch)
    if call.query_padding_size is None:
        return [(0, n) for n in lengths]
    return [
        (max(0, rows - pad - n), n) for pad, n in zip(_padding(call, "query"), lengths, strict=True)
    ]


def _key_spans(call: InferArguments, columns: int) -> list[tuple[int, int]]:
    if call.ragged and not call.paged:
        return spans(call.actual_seq_lengths_kv)
    lengths = kv_lengths(call)
    if call.kv_padding_size is None or call.actual_seq_lengths_kv is None:
        return [(0, prefix_length(call) + n) for n in lengths]
    found = []
    for pad, length in zip(_padding(call, "kv"), lengths, strict=True):
        start, end = columns - pad - length, columns - pad
        found.append((start, length) if min(start, end) >= 0 else (0, 0))
    return found


def _padding(call: InferArguments, side: str) -> list[int]:
    sizes_ = getattr(call, f"{side}_padding_size").reshape(-1).tolist()
    return [max(0, n) for n in each(sizes_, call.batch)]


def _left_padded(call: InferArguments) -> bool:
    query = call.query_padding_size is not None and call.actual_seq_lengths is not None
    return query or (call.kv_padding_size is not None and call.actual_seq_lengths_kv is not None)


def _window(call: InferArguments, rows: int, columns: int) -> tuple[int, int]:
    """The columns that a row sees by sparse_mode, as offsets from the row."""
    mode, corner = call.sparse_mode, columns - rows
    if call.unwindowed:
        return -FAR, FAR
    if mode == DEFAULT and call.atten_mask is not None and not _left_padded(call):
        return _near(-call.pre_tokens), _near(call.next_tokens)
    if mode == LEFT_UP:
        return -FAR, 0
    if mode == RIGHT_DOWN:
        return -FAR, corner
    if mode == BAND:
        return _near(corner - call.pre_tokens), _near(corner + call.next_tokens)
    return -FAR, FAR


def _near(offset: int) -> int:
    return max(-FAR, min(FAR, offset))


def _parts(call: InferArguments, problem: Problem) -> list[Problem]:
    """The problem with mask and bias; by sequence where these do not start at the same token."""
    problem.bias, mode = call.pse_shift, call.sparse_mode
    if call.atten_mask is not None:
        if mode in (LEFT_UP, RIGHT_DOWN, BAND):
            _check_template(call, call.atten_mask)
        elif mode != TREE:
            problem.mask = _full_mask(call, call.atten_mask)
    starts = [(s.q_start, s.kv_start) for s in problem.segments]
    shifted = not call.ragged and any(map(any, starts))
    if mode != TREE and (not shifted or (problem.mask is None and problem.bias is None)):
        return [problem]
    parts = []
    for index, segment in enumerate(problem.segments):
        part = replace(problem, segments=[segment], **_alone(call, problem, index))
        if mode == TREE and call.atten_mask is not None:
            part.mask = _tree_mask(call.atten_mask, problem.segments, index)
        else:
            part.mask = _crop(part.mask, segment)
        part.bias = _crop(part.bias, segment)
        parts.append(part)
    return parts


def _alone(call: InferArguments, problem: Problem, index: int) -> dict[str, Any]:
    """The tensors of one sequence; a ragged batch keeps its single entry."""
    pick = lambda t: t if t is None or t.shape[0] == 1 else t[index : index + 1]  # noqa: E731
    caches = ("key", "value") if problem.pages is None else ("pages",)
    names = ("query", *caches, "out", "lse", "mask", "bias")
    return {name: pick(getattr(problem, name)) for name in names}


def _crop(tensor: torch.Tensor | None, segment: Segment) -> torch.Tensor | None:
    """Masks and biases count from the tensors' first token, the engine from the segment's."""
    return None if tensor is None else tensor[:, :, segment.q_start :, segment.kv_start :]


def _full_mask(call: InferArguments, mask: torch.Tensor) -> torch.Tensor:
    mask = mask.view(torch.uint8) if mask.dtype == torch.int8 else mask
    if mask.dim() == 2:
        return mask[:, None, None] if call.decode else mask[None, None]
    return mask.unsqueeze(1) if mask.dim() == 3 else mask


def _tree_mask(trees: torch.Tensor, segments: list[Segment], index: int) -> torch.Tensor:
    """The mask among the drafted tokens, the last columns; all earlier columns are seen."""
    segment = segments[index]
    side = segment.q_length
    if trees.dim() == 1:  # one after the other
        before = sum(s.q_length**2 for s in segments[:index])
        tree = trees[before : before + side**2].view(side, side)
    else:
        tree = trees[index, :side, :side]
    mask = tree.new_zeros((1, 1, side, segment.kv_length), dtype=torch.bool)
    mask[0, 0, :, segment.kv_length - side :] = tree != 0
    return mask


def _check_template(call: InferArguments, mask: torch.Tensor) -> None:
    """sparse_mode 2, 3 and 4 stand for a window; their mask must be the causal template."""
    if not settings.strict() or call.unwindowed:
        return
    template, last = mask.reshape(-1, TEMPLATE, TEMPLATE)[0], TEMPLATE - 1
    seen = [bool(template[i, j]) for i, j in ((0, 0), (0, 1), (1, 0), (0, last), (last, 0))]
    if seen != [False, True, False, True, False]:
        expected = "1 above the diagonal and 0 elsewhere (torch.triu(ones, 1)) for this sparse_mode"
        raise _errors.BadArgument(
            call.name("atten_mask"), expected, "another pattern", _errors.ErrCode.VALUE
        )
