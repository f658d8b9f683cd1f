"""The documented constraints of training attention, shared by npu_fusion_attention and its versions."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu.ops import _check as must
from torch_npu.ops.attention import _fusion, _layouts, _masks
from torch_npu.ops.attention._fusion import Attention, Saved

_FLOATS = (torch.float16, torch.bfloat16, torch.float32)
_TOKENS = 2**20  # upstream's 1M
_COMPRESSED_ROWS = 1024  # of a compressed pse


def check(a: Attention) -> None:
    """Everything that the pages say of the forward's arguments."""
    family = chips.current().family
    must.hold(family in ("A2", "A3", "A5"), "query", "on a chip that trains (A2, A3 or A5)", family)
    must.unset("padding_mask", a.padding_mask)
    check_tensors(a)
    must.hold(0 < a.keep_prob <= 1, "keep_prob", "above 0 and at most 1", a.keep_prob)
    must.choice("inner_precise", a.inner_precise, (0, 1, 2))
    must.choice("gen_mask_parallel", a.gen_mask_parallel, (False, True))
    must.choice("sync", a.sync, (False, True))
    must.choice("softmax_layout", a.softmax_layout, ("", "TND") if a.layout == "TND" else ("",))
    _check_lengths(a)
    _check_mode(a)
    if a.atten_mask is not None:
        _check_mask(a, a.atten_mask)
    if a.pse is not None:
        _check_pse(a, a.pse)
    must.dtype("sink", a.sink, torch.float32)
    must.shape("sink", a.sink, (a.heads,))
    must.dtype("dropout_mask", a.dropout_mask, torch.uint8)
    if a.dropout_mask is not None:
        must.shape("dropout_mask", a.dropout_mask, ((a.numels + 127) // 128 * 16,))


def check_gradient(a: Attention, saved: Saved) -> None:
    """What the named gradients ask for besides."""
    check(a)
    out = tuple(_layouts.output_shape(a.query, a.layout, a.heads, a.v.shape[3]))
    stats = tuple(_layouts.stats_shape(a.query, a.layout, a.heads))
    shapes = {"dy": out, "softmax_max": stats, "softmax_sum": stats, "attention_in": out}
    for name, shape in shapes.items():
        tensor = getattr(saved, name)
        must.present(name, tensor, "by the forward")
        must.shape(name, tensor, shape)
        must.dtype(name, tensor, torch.float32 if shape is stats else a.query.dtype)
    if saved.softmax_in is not None:
        must.hold(
            saved.softmax_in.numel() == 0,
            "softmax_in",
            "empty (upstream reserves it)",
            tuple(saved.softmax_in.shape),
        )
    if saved.numels and a.keep_prob < 1:
        must.hold(
            saved.numels == a.numels, "numels", f"the number of weights ({a.numels})", saved.numels
        )


def check_tensors(a: Attention) -> None:
    must.hold(
        a.layout in _layouts.LAYOUTS, "input_layout", must.one_of(_layouts.LAYOUTS), a.input_layout
    )
    dims = 3 if a.layout in ("BSH", "SBH", "TND") else 4
    must.dtype("query", a.query, *_FLOATS)
    for name in ("query", "key", "value"):
        tensor = getattr(a, name)
        must.ndim(name, tensor, dims)
        must.same_dtype(name, tensor, "query", a.query)
    must.hold(a.head_num > 0, "head_num", "positive", a.head_num)
    must.hold(a.head_num <= 256, "head_num", "at most 256", a.head_num)
    if a.layout in ("BSH", "SBH"):
        size = a.query.shape[2] // a.head_num
        whole = size > 0 and a.query.shape[2] % a.head_num == 0
        must.hold(whole, "query", f"of head_num ({a.head_num}) heads", tuple(a.query.shape))
        fits = a.key.shape[2] > 0 and a.key.shape[2] % size == 0
        must.hold(fits, "key", f"of heads of size {size}", tuple(a.key.shape))
        fits = a.value.shape[2] > 0 and a.value.shape[2] % a.kv_heads == 0
        must.hold(fits, "value", f"of {a.kv_heads} heads", tuple(a.value.shape))
    else:
        must.hold(
            a.head_num == a.heads, "head_num", f"the heads of 'query' ({a.heads})", a.head_num
        )
    _check_rope(a)
    batch, heads, length, size = a.q.shape
    must.hold(
        a.k.shape[1] >= 1 and heads % a.k.shape[1] == 0,
        "key",
        f"of heads that divide {heads}",
        a.k.shape[1],
    )
    must.hold(1 <= length <= _TOKENS, "query", f"of a sequence of 1 to {_TOKENS}", length)
    must.hold(1 <= a.k.shape[2] <= _TOKENS, "key", f"of a sequence of 1 to {_TOKENS}", a.k.shape[2])
    must.hold(batch >= 1, "query", "of at least one batch", tuple(a.query.shape))
    must.hold(1 <= size <= 768, "query", "of a head size from 1 to 768", size)
    must.hold(
        a.k.shape[0] == batch and a.k.shape[3] == size,
        "key",
        f"of batch {batch} and head size {size}",
        tuple(a.key.shape),
    )
    must.hold(
        a.v.shape[:3] == a.k.shape[:3],
        "value",
        f"of the batch, heads and length of 'key' {tuple(a.key.shape)}",
        tuple(a.value.shape),
    )
    must.hold(1 <= a.v.shape[3] <= size, "value", f"of a head size from 1 to {size}", a.v.shape[3])


def _check_rope(a: Attention) -> None:
    if a.query_rope is None and a.key_rope is None:
        return
    must.present("query_rope", a.query_rope, "with key_rope")
    must.present("key_rope", a.key_rope, "with query_rope")
    if chips.current().family != "A5":
        must.hold(a.layout == "TND", "query_rope", "given with input_layout TND", a.input_layout)
    for name, tensor, other in (
        ("query_rope", a.query_rope, a.query),
        ("key_rope", a.key_rope, a.key),
    ):
        must.same_dtype(name, tensor, "query", a.query)
        must.shape(name, tensor, (*other.shape[:-1], None))


def _check_lengths(a: Attention) -> None:
    given = {"actual_seq_qlen": a.actual_seq_qlen, "actual_seq_kvlen": a.actual_seq_kvlen}
    if a.layout != "TND":
        for name, ends in given.items():
            must.hold(not ends, name, "given in input_layout TND only", ends)
        return
    for (name, ends), total in zip(given.items(), (a.q.shape[2], a.k.shape[2]), strict=True):
        must.present(name, ends or None, "in input_layout TND")
        must.hold(len(ends) <= 2048, name, "of at most 2048 sequences", len(ends))
        taking_part = [e for e in ends if e]
        rising = taking_part == sorted(taking_part) and all(e >= 0 for e in ends)
        must.hold(rising, name, "cumulative lengths", list(ends))
        must.hold(max(ends) <= total, name, f"lengths that end at or before {total}", list(ends))
    same = len(given["actual_seq_qlen"]) == len(given["actual_seq_kvlen"])
    must.hold(
        same, "actual_seq_kvlen", "as long as actual_seq_qlen", list(given["actual_seq_kvlen"])
    )


def _check_mode(a: Attention) -> None:
    tnd = a.layout == "TND"
    must.choice("sparse_mode", a.sparse_mode, (0, 1, 2, 3, 4, 6, 7, 8) if tnd else range(7))
    if a.atten_mask is None:
        return
    before, after = a.pre_tokens, a.next_tokens
    if a.sparse_mode in (_masks.DEFAULT, _masks.BAND):
        must.hold(
            before + after >= 0,
            a.after,
            f"at least -{a.before}, so that the band is not empty",
            after,
        )
    if a.sparse_mode in (_masks.PREFIX, _masks.PREFIX_SMALL):
        must.present("prefix", a.prefix, f"with sparse_mode {a.sparse_mode}")
        count = len(a.segments)
        must.hold(
            len(a.prefix) == count <= 32,
            "prefix",
            f"one number for each of {count} (at most 32) batches",
            list(a.prefix),
        )
        for n, s in zip(a.prefix, a.segments, strict=True):
            least = max(0, s.kv_length - s.q_length)
            must.hold(
                least <= n <= s.kv_length,
                "prefix",
                f"from {least} to {s.kv_length}",
                list(a.prefix),
            )
    taking_part = [s.kv_length for s in a.segments if s.q_length > 0]
    if a.sparse_mode == _masks.RIGHT_DOWN_BAND and taking_part:
        must.hold(
            before >= taking_part[-1],
            a.before,
            f"at least the last Skv ({taking_part[-1]})",
            before,
        )
        must.hold(after <= 0, a.after, "at most 0", after)
    if a.sparse_mode == _masks.LEFT_UP_BAND and taking_part:
        must.hold(
            before >= taking_part[0], a.before, f"at least the first Skv ({taking_part[0]})", before
        )


def _check_mask(a: Attention, mask: torch.Tensor) -> None:
    must.dtype("atten_mask", mask, torch.bool, torch.uint8)
    if a.sparse_mode in _masks.COMPRESSED:
        _masks.check_compressed(mask, a.sparse_mode)
        return
    batch, heads, rows, _ = a.q.shape
    columns = a.k.shape[2]
    if a.layout == "TND":
        rows = max(s.q_length for s in a.segments)
        columns = max(s.kv_length for s in a.segments)
        fits = mask.dim() == 2 and mask.shape[0] >= rows and mask.shape[1] >= columns
        must.hold(
            fits,
            "atten_mask",
            f"of shape (maxSq, maxSkv), at least ({rows}, {columns})",
            tuple(mask.shape),
        )
        return
    shapes = [(batch, heads, rows, columns), (batch, 1, rows, columns)]
    if a.sparse_mode != _masks.PREFIX:
        shapes += [(1, 1, rows, columns), (rows, columns)]
    must.hold(
        tuple(mask.shape) in shapes,
        "atten_mask",
        f"of shape {must.one_of(shapes)}",
        tuple(mask.shape),
    )


def _check_pse(a: Attention, pse: torch.Tensor) -> None:
    modes = (_masks.RIGHT_DOWN_BAND, _masks.LEFT_UP_BAND)
    must.hold(
        a.sparse_mode not in modes, "pse", "left out in sparse_mode 7 and 8", tuple(pse.shape)
    )
    must.choice("pse_type", a.pse_type, range(4))
    batch, heads, rows, _ = a.q.shape
    columns = a.k.shape[2]
    if a.layout == "TND":
        batch = len(a.segments)
        must.hold(
            all(s.q_length for s in a.segments),
            "pse",
            "left out where a sequence is empty",
            tuple(pse.shape),
        )
    if a.pse_type >= _fusion.ALIBI:
        must.dtype("pse", pse, torch.float32)
        shapes = [(batch, heads), (heads,)]
        must.hold(
            tuple(pse.shape) in shapes,
            "pse",
            f"slopes of shape {must.one_of(shapes)}",
            tuple(pse.shape),
        )
        for name, index in (("q_start_idx", a.q_start_idx), ("kv_start_idx", a.kv_start_idx)):
            must.hold(index is None or len(index) <= 1, name, "at most one number", index)
        return
    must.same_dtype("pse", pse, "query", a.query)
    must.ndim("pse", pse, 4)
    square = all(s.q_length == s.kv_length for s in a.segments)
    compressed = square and a.sparse_mode in (_masks.DEFAULT, _masks.LEFT_UP, _masks.RIGHT_DOWN)
    shapes = []
    if a.layout != "TND":
        shapes = [
            (batch, heads, rows, columns),
            (batch, heads, 1, columns),
            (1, heads, rows, columns),
        ]
        compressed = compressed and rows > _COMPRESSED_ROWS
    else:
        columns = max(pse.shape[3], *(s.kv_length for s in a.segments), _COMPRESSED_ROWS)
    if compressed:
        shapes += [(n, heads, _COMPRESSED_ROWS, columns) for n in (batch, 1)]
    must.hold(
        tuple(pse.shape) in shapes,
        "pse",
        f"of shape {must.one_of(shapes or ['none here'])}",
        tuple(pse.shape),
    )
