"""What training attention's host code asks of pre_tokens, next_tokens and prefix, by sparse mode and layout."""

from __future__ import annotations

from torch_npu.ops import _check as must
from torch_npu.ops.attention import _masks
from torch_npu.ops.attention._fusion import Attention
from torch_npu.ops.attention._layouts import Segment

_EVEN_SIZE = 128  # the head size with which TND of equal lengths is computed as BSH


def check_band(a: Attention) -> None:
    """The band of each sequence is one that the mode allows; called where a mask is given."""
    if a.sparse_mode == _masks.PREFIX_SMALL:
        _check_prefix(a)
    elif a.layout == "TND" and not _even(a):
        _check_tnd(a)
    elif a.sparse_mode in (_masks.DEFAULT, _masks.BAND):
        _check_dense(a)


def _even(a: Attention) -> bool:
    """Whether TND is computed as a batch of equal sequences, with the rules of BSH."""
    if a.sparse_mode > _masks.PREFIX_SMALL or a.pse is not None or a.softmax_layout == "TND":
        return False
    parts = {(s.q_length, s.kv_length) for s in a.segments}
    usual = all(t.shape[-1] == _EVEN_SIZE for t in (a.query, a.key, a.value))
    return len(parts) == 1 and a.covered and usual and a.query_rope is None


def _check_prefix(a: Attention) -> None:
    prefix = must.present("prefix", a.prefix, f"with sparse_mode {a.sparse_mode}")
    expected = f"one number for each of {len(a.segments)} batches"
    must.hold(len(prefix) == len(a.segments), "prefix", expected, list(prefix))
    for n, s in zip(prefix, a.segments, strict=True):
        least = max(0, s.kv_length - s.q_length)
        fits = least <= n <= s.kv_length
        must.hold(fits, "prefix", f"from {least} to {s.kv_length}", list(prefix))


def _check_dense(a: Attention) -> None:
    part = a.segments[0] if a.segments else Segment(0, 0, 0, 0)
    rows, columns = part.q_length, part.kv_length
    if not rows or not columns:
        return
    moved = rows - columns if a.sparse_mode == _masks.BAND else 0
    before, after = a.pre_tokens + moved, a.next_tokens - moved
    fits = before >= 0 or (after >= -before and -before < columns)
    expected = f"such that the band of {rows} rows and {columns} columns is not empty"
    must.hold(fits, a.before, expected, a.pre_tokens)
    fits = after >= 0 or (before >= -after and -after < rows)
    must.hold(fits, a.after, expected, a.next_tokens)


def _check_tnd(a: Attention) -> None:
    before, after = a.pre_tokens, a.next_tokens
    full = [s for s in a.segments if s.q_length and s.kv_length]
    if a.sparse_mode == _masks.DEFAULT:
        _check_default(a, full)
    elif a.sparse_mode == _masks.RIGHT_DOWN:
        _check_rows(a.segments, 0)
    elif a.sparse_mode == _masks.BAND:
        must.hold(before >= 0, a.before, "at least 0 in TND", before)
        must.hold(before + after >= 0, a.after, f"at least -{a.before}", after)
        for s in full:
            fits = s.q_length - after <= s.kv_length
            must.hold(fits, a.after, f"at least Sq - Skv ({s.q_length - s.kv_length})", after)
    elif a.sparse_mode == _masks.RIGHT_DOWN_BAND:
        _check_last(a, full)
    elif a.sparse_mode == _masks.LEFT_UP_BAND:
        first = next((s for s in a.segments if s.q_length > 0), None)
        if first is not None:
            wanted = f"at least the first Skv ({first.kv_length})"
            must.hold(before >= first.kv_length, a.before, wanted, before)
            fits = first.q_length - after <= first.kv_length
            wanted = f"at least Sq - Skv ({first.q_length - first.kv_length}) of the first sequence"
            must.hold(fits, a.after, wanted, after)


def _check_default(a: Attention, full: list[Segment]) -> None:
    before, after = a.pre_tokens, a.next_tokens
    rows = max((s.q_length for s in a.segments), default=0)
    columns = max((s.kv_length for s in a.segments), default=0)
    if before >= rows and (after == 0 or after >= columns):
        return
    must.hold(after >= 0, a.after, "at least 0 in TND", after)
    for s in full:
        least = s.q_length - s.kv_length
        must.hold(before >= least, a.before, f"at least Sq - Skv ({least})", before)
    must.hold(before >= 0 or after >= -before, a.after, f"at least -{a.before}", after)


def _check_last(a: Attention, full: list[Segment]) -> None:
    last = next((s for s in reversed(a.segments) if s.q_length > 0), None)
    if last is None:
        return
    wanted = f"at least the last Skv ({last.kv_length})"
    must.hold(a.pre_tokens >= last.kv_length, a.before, wanted, a.pre_tokens)
    must.hold(a.next_tokens <= 0, a.after, "at most 0", a.next_tokens)
    _check_rows(full, 0)
    if last in full:
        least = last.q_length - last.kv_length
        wanted = f"at least Sq - Skv ({least}) of the last sequence"
        must.hold(a.next_tokens >= least, a.after, wanted, a.next_tokens)


def _check_rows(parts: list[Segment], after: int) -> None:
    for s in parts:
        fits = s.q_length - after <= s.kv_length
        wanted = f"such that no sequence has more queries ({s.q_length}) than keys"
        must.hold(fits, "actual_seq_kvlen", wanted, s.kv_length)
