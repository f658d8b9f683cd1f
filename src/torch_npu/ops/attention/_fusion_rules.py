"""The constraints of training attention, shared by npu_fusion_attention and its versions: those of CANN's host code
(flash_attention_score's op_api and op_host) and op-plugin's."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu.ops import _check as must
from torch_npu.ops.attention import _fusion, _fusion_band_rules, _layouts, _masks
from torch_npu.ops.attention._fusion import Attention, Saved

_FLOATS = (torch.float16, torch.bfloat16, torch.float32)
_COMPRESSED_ROWS = 1024  # of a compressed pse


def check(a: Attention) -> None:
    """Everything that the pages say of the forward's arguments."""
    family = chips.current().family
    must.hold(family in ("A2", "A3", "A5"), "query", "on a chip that trains (A2, A3 or A5)", family)
    must.unset("padding_mask", a.padding_mask)
    check_tensors(a)
    must.hold(0 < a.keep_prob <= 1, "keep_prob", "above 0 and at most 1", a.keep_prob)
    must.anything(a.inner_precise)  # the host code asks for no value
    must.choice("gen_mask_parallel", a.gen_mask_parallel, (False, True))
    must.choice("sync", a.sync, (False, True))
    must.choice("softmax_layout", a.softmax_layout, ("", "TND") if a.layout == "TND" else ("",))
    _check_lengths(a)
    _check_mode(a)
    if a.atten_mask is not None:
        _check_mask(a, a.atten_mask)
    if a.pse is not None:
        _check_pse(a, a.pse)
    else:
        types = (_fusion.ADD_MUL,) if family != "A5" else (_fusion.MUL_ADD, _fusion.ADD_MUL)
        must.choice("pse_type", a.pse_type, types)
    must.dtype("sink", a.sink, torch.float32)
    must.shape("sink", a.sink, (a.heads,))
    must.dtype("dropout_mask", a.dropout_mask, torch.uint8)
    if a.dropout_mask is not None:
        least = (a.numels + 7) // 8
        have = a.dropout_mask.numel()
        must.hold(have >= least, "dropout_mask", f"of at least {least} bytes", have)


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
    batch, heads, _, size = a.q.shape
    must.hold(
        a.k.shape[1] >= 1 and heads % a.k.shape[1] == 0,
        "key",
        f"of heads that divide {heads}",
        a.k.shape[1],
    )
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
    assert a.query_rope is not None
    for name, tensor, other in (
        ("query_rope", a.query_rope, a.query),
        ("key_rope", a.key_rope, a.key),
    ):
        must.same_dtype(name, tensor, "query", a.query)
        must.shape(name, tensor, (*other.shape[:-1], None))
    if chips.current().family != "A5":
        _check_rope_of_tnd(a)
        return
    sizes = (a.query.shape[-1], a.query_rope.shape[-1])  # in BSH of all heads
    count = a.heads if a.layout in ("BSH", "SBH") else 1
    must.hold(
        sizes == (128 * count, 64 * count),
        "query_rope",
        "of size 64 beside a query of size 128",
        sizes,
    )


def _check_rope_of_tnd(a: Attention) -> None:
    """What A2 and A3 ask for besides: one form of TND."""
    assert a.query_rope is not None
    must.hold(a.layout == "TND", "query_rope", "given with input_layout TND", a.input_layout)
    must.dtype("query_rope", a.query_rope, torch.bfloat16)
    size, own = a.query_rope.shape[-1], a.query.shape[-1]
    must.hold(size <= own, "query_rope", f"of a size of at most {own}", size)
    must.present("atten_mask", a.atten_mask, "with query_rope")
    must.hold(a.pse is None, "pse", "left out with query_rope", "a tensor")
    must.hold(a.keep_prob == 1, "keep_prob", "1 with query_rope", a.keep_prob)
    must.hold(a.sparse_mode != 6, "sparse_mode", "not 6 with query_rope", a.sparse_mode)


def _check_lengths(a: Attention) -> None:
    given = {"actual_seq_qlen": a.actual_seq_qlen, "actual_seq_kvlen": a.actual_seq_kvlen}
    if a.layout != "TND":
        both = all(given.values())  # one alone is read nowhere
        must.hold(not both, "actual_seq_qlen", "given in input_layout TND only", a.actual_seq_qlen)
        return
    counts = []
    for (name, each), total in zip(given.items(), (a.q.shape[2], a.k.shape[2]), strict=True):
        ends = must.present(name, each or None, "in input_layout TND")
        taking_part = [e for e in ends if e]
        rising = taking_part == sorted(taking_part) and all(e >= 0 for e in ends)
        must.hold(rising, name, "cumulative lengths", list(ends))
        must.hold(max(ends) <= total, name, f"lengths that end at or before {total}", list(ends))
        counts.append(len(ends))
    must.hold(
        counts[0] == counts[1], "actual_seq_kvlen", "as long as actual_seq_qlen", a.actual_seq_kvlen
    )


def _check_mode(a: Attention) -> None:
    tnd = a.layout == "TND"
    must.choice("sparse_mode", a.sparse_mode, (0, 1, 2, 3, 4, 6, 7, 8) if tnd else range(7))
    if a.atten_mask is None:
        return
    _fusion_band_rules.check_band(a)


def _check_mask(a: Attention, mask: torch.Tensor) -> None:
    must.dtype("atten_mask", mask, torch.bool, torch.uint8)
    if a.sparse_mode in _masks.COMPRESSED:
        _masks.check_compressed(mask, a.sparse_mode)
        return
    batch, heads, rows, _ = a.q.shape
    columns = a.k.shape[2]
    if a.layout == "TND":
        must.hold(
            tuple(mask.shape) in (a.longest, a.totals),
            "atten_mask",
            f"of shape (max Sq, max Skv) {a.longest} or (all Sq, all Skv) {a.totals}",
            tuple(mask.shape),
        )
        return
    shapes: list[tuple[int, ...]] = [(batch, heads, rows, columns), (batch, 1, rows, columns)]
    if a.sparse_mode != _masks.PREFIX or batch == 1 or not a.prefix_counts:
        shapes += [(1, 1, rows, columns), (rows, columns)]
    must.hold(
        tuple(mask.shape) in shapes,
        "atten_mask",
        f"of shape {must.one_of(shapes)}",
        tuple(mask.shape),
    )


def _check_pse(a: Attention, pse: torch.Tensor) -> None:
    must.choice("pse_type", a.pse_type, range(4))
    batch, heads, rows, _ = a.q.shape
    columns = a.k.shape[2]
    if a.layout == "TND":
        batch = len(a.segments)
    if a.pse_type >= _fusion.ALIBI:
        must.dtype("pse", pse, torch.float32)
        shapes = [(batch, heads), (heads,)]
        must.hold(
            tuple(pse.shape) in shapes,
            "pse",
            f"slopes of shape {must.one_of(shapes)}",
            tuple(pse.shape),
        )
        _check_slopes(a)
        return
    must.same_dtype("pse", pse, "query", a.query)
    must.ndim("pse", pse, 4)
    compressed = _causal(a) and all(s.q_length == s.kv_length for s in a.segments)
    shapes = []
    if a.layout != "TND":
        shapes = [(n, heads, high, columns) for n in (batch, 1) for high in (rows, 1)]
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


def _causal(a: Attention) -> bool:
    """Whether the mask and the mode make a triangle, which a compressed pse asks for."""
    if a.atten_mask is None or a.sparse_mode != _masks.DEFAULT:
        return a.atten_mask is not None and a.sparse_mode in (_masks.LEFT_UP, _masks.RIGHT_DOWN)
    longest = a.longest[0] if a.layout == "TND" else a.q.shape[2]
    return a.pre_tokens >= longest and a.next_tokens == 0


def _check_slopes(a: Attention) -> None:
    """ALiBi computed from slopes takes equal lengths: everywhere but in TND of A2 and A3."""
    if a.sparse_mode == _masks.RIGHT_DOWN_BAND:
        must.hold(False, "pse_type", "0 or 1 in sparse_mode 7", a.pse_type)
    if a.atten_mask is not None and a.sparse_mode == _masks.LEFT_UP_BAND and a.segments:
        first, *others = [s.q_length - s.kv_length for s in a.segments]
        equal = first == a.shift and not any(others)
        expected = "of equal lengths in sparse_mode 8"
        must.hold(equal, "actual_seq_kvlen", expected, a.actual_seq_kvlen)
        return
    ascend950 = chips.current().family == "A5"
    if (a.layout == "TND") == ascend950:
        for s in a.segments:
            expected = f"of the length of 'query' ({s.q_length}) with pse_type {a.pse_type}"
            must.hold(s.q_length == s.kv_length, "key", expected, s.kv_length)
