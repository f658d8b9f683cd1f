"""Slots of KV caches: the table of requests, and pages for tokens that are added."""

from __future__ import annotations

import torch

from softnpu.contrib.sgl_kernel_npu._define import sgl_op
from torch_npu.ops import _check as must

__all__ = ["alloc_extend", "assign_cache_op", "cache_loc_assign", "cache_loc_update"]

#: slots that a request can be given in one call
MAX_STEP = 16
_ARGUMENTS = (
    "Tensor req_indices, Tensor token_pool, Tensor start_offset, Tensor end_offset, "
    "Tensor out_cache_loc"
)


@sgl_op(f"cache_loc_assign({_ARGUMENTS}) -> Tensor")
def cache_loc_assign(req_indices, token_pool, start_offset, end_offset, out_cache_loc):
    """token_pool[req_indices[r], start[r] : end[r]] gets the next end[r] - start[r] elements of out_cache_loc.

    `token_pool` is written and returned, though the schema does not say so.
    """
    table, slots, valid = _places(req_indices, token_pool, start_offset, end_offset, out_cache_loc)
    _write(token_pool, table, out_cache_loc[slots.clamp(0)] if slots.numel() else slots, valid)
    return token_pool


@sgl_op(f"cache_loc_update({_ARGUMENTS}) -> Tensor")
def cache_loc_update(req_indices, token_pool, start_offset, end_offset, out_cache_loc):
    """The other way: the next elements of out_cache_loc get token_pool[req_indices[r], start[r] : end[r]].

    `out_cache_loc` is written and returned, though the schema does not say so.
    """
    table, slots, valid = _places(req_indices, token_pool, start_offset, end_offset, out_cache_loc)
    values = token_pool.reshape(-1)[table] if table.numel() else table
    _write(out_cache_loc, slots, values, valid)
    return out_cache_loc


def _places(req_indices, token_pool, start_offset, end_offset, out_cache_loc):
    """(requests, 16): elements of the table, elements of the list, and which of them count; all lie inside."""
    rows, columns = token_pool.shape
    count, step = out_cache_loc.numel(), torch.arange(MAX_STEP)
    length = end_offset - start_offset
    request, position = req_indices.long().unsqueeze(1), start_offset.unsqueeze(1) + step
    slot = (length.cumsum(0) - length).unsqueeze(1) + step
    valid = (step < length.unsqueeze(1)) & (request >= 0) & (request < rows)
    valid &= (position >= 0) & (position < columns) & (slot >= 0) & (slot < count)
    table = request * columns + position
    return table.masked_fill(~valid, 0), slot.masked_fill(~valid, 0), valid


def _write(target, places, values, valid):
    """target[places] = values where they are valid, as one operation of a fixed size."""
    size = target.numel()
    room = torch.cat((target.reshape(-1), target.new_zeros(1)))
    room[places.masked_fill(~valid, size)] = values.to(target.dtype)
    target.copy_(room[:size].view(target.shape))


def _check_table(name, **given):
    must.dtype("req_indices", given["req_indices"], torch.int32, torch.int64)
    must.ndim("req_indices", given["req_indices"], 1)
    requests = given["req_indices"].shape[0]
    must.dtype("token_pool", given["token_pool"], torch.int32)
    must.ndim("token_pool", given["token_pool"], 2)
    must.dtype("out_cache_loc", given["out_cache_loc"], torch.int32)
    must.ndim("out_cache_loc", given["out_cache_loc"], 1)
    start, end = given["start_offset"], given["end_offset"]
    for label, tensor in (("start_offset", start), ("end_offset", end)):
        must.dtype(label, tensor, torch.int64)
        must.shape(label, tensor, (requests,))
    if not must.has_data(start):
        return
    rows, columns = given["token_pool"].shape
    lengths = (end - start).tolist()
    fits = all(0 <= n <= MAX_STEP for n in lengths)
    must.hold(fits, "end_offset", f"from 0 to {MAX_STEP} after 'start_offset'", lengths)
    inside = all(0 <= r < rows for r in given["req_indices"].tolist())
    must.hold(inside, "req_indices", f"rows of 'token_pool', of which there are {rows}",
              given["req_indices"].tolist())  # fmt: skip
    inside = all(a >= 0 and b <= columns for a, b in zip(start.tolist(), end.tolist(), strict=True))
    must.hold(inside, "start_offset", f"within the {columns} columns of 'token_pool'",
              (start.tolist(), end.tolist()))  # fmt: skip
    count = given["out_cache_loc"].numel()
    must.hold(sum(lengths) <= count, "out_cache_loc", f"of at least {sum(lengths)} elements", count)


@cache_loc_assign.check
def _(**given):
    _check_table("cache_loc_assign", **given)


@cache_loc_update.check
def _(**given):
    _check_table("cache_loc_update", **given)


@cache_loc_assign.meta
def _(token_pool):
    return token_pool


@cache_loc_update.meta
def _(out_cache_loc):
    return out_cache_loc


@sgl_op(
    "assign_cache_op(Tensor! out, Tensor src, Tensor dst_start_idx, Tensor dst_end_idx, "
    "Tensor src_start_idx, Tensor src_end_idx) -> bool"
)
def assign_cache_op(out, src, dst_start_idx, src_start_idx, src_end_idx):
    """out[r] from dst_start[r] on gets the elements src_start[r] to src_end[r] of src, for each row r.

    The lengths are those of the source; `dst_end_idx` has no effect.
    """
    width, flat = out.shape[1], src.reshape(-1)
    starts = zip(dst_start_idx.tolist(), src_start_idx.tolist(), src_end_idx.tolist(), strict=False)
    for row, (at, first, last) in enumerate(starts):
        count = last - first
        if row == out.shape[0] or count <= 0:
            continue
        inside = at >= 0 and at + count <= width
        must.hold(inside, "dst_start_idx", f"such that {count} elements lie in [0, {width})", at)
        inside = first >= 0 and last <= flat.numel()
        must.hold(inside, "src_end_idx", f"at most {flat.numel()}, the size of 'src'", last)
        out[row, at : at + count] = flat[first:last]
    return True


@assign_cache_op.meta
def _():
    return True


@assign_cache_op.check
def _(out, src, dst_end_idx, **rest):
    must.ndim("out", out, 2)
    must.same_dtype("src", src, "out", out)
    for name, tensor in (("dst_end_idx", dst_end_idx), *rest.items()):
        must.dtype(name, tensor, torch.int64)
        must.ndim(name, tensor, 1)
        fits = tensor.shape[0] >= out.shape[0]
        must.hold(fits, name, f"of an element for each row of 'out', {out.shape[0]}", tensor.shape)


@sgl_op(
    "alloc_extend(Tensor pre_lens, Tensor seq_lens, Tensor last_loc, Tensor free_pages, "
    "int page_size, Tensor(a!) out_indices, Tensor(b!) values) -> ()"
)
def alloc_extend(pre_lens, seq_lens, last_loc, free_pages, page_size, out_indices, values):
    """The slots of the tokens that each request adds: the rest of its last page, then pages from `free_pages`.

    `values[0]` receives the number of pages taken, as the card does it: only if the last request ends within a new
    page.
    """
    lengths = zip(pre_lens.tolist(), seq_lens.tolist(), last_loc.tolist(), strict=True)
    taken = place = 0
    partial = False
    for before, after, last in lengths:
        filled = -(-before // page_size) * page_size
        first = min(after, filled) - before
        need = -(-after // page_size) - -(-before // page_size)
        fits = taken + need <= free_pages.numel()
        must.hold(fits, "free_pages", f"of at least {taken + need} pages", free_pages.numel())
        fits = place + after - before <= out_indices.numel()
        must.hold(fits, "out_indices", f"of at least {place + after - before} elements",
                  out_indices.numel())  # fmt: skip
        slots = torch.arange(after - before)
        own = free_pages[taken : taken + need].unsqueeze(1) * page_size + torch.arange(page_size)
        slots[:first] += last + 1
        slots[first:] = own.reshape(-1)[: after - before - first]
        out_indices[place : place + after - before] = slots
        taken, place = taken + need, place + after - before
        partial = after > filled and after % page_size != 0
    if partial:
        values.view(-1)[0] = taken


@alloc_extend.meta
def _():
    return None


@alloc_extend.check
def _(page_size, values, **rest):
    must.hold(page_size > 0, "page_size", "positive", page_size)
    for name, tensor in rest.items():
        must.dtype(name, tensor, torch.int64)
        must.ndim(name, tensor, 1)
    must.dtype("values", values, torch.int64)
    must.hold(values.numel() > 0, "values", "of at least one element", tuple(values.shape))
    requests = rest["pre_lens"].shape[0]
    for name in ("seq_lens", "last_loc"):
        must.shape(name, rest[name], (requests,))
    if must.has_data(rest["pre_lens"]):
        before, after = rest["pre_lens"].tolist(), rest["seq_lens"].tolist()
        grows = all(0 <= a <= b for a, b in zip(before, after, strict=True))
        must.hold(grows, "seq_lens", f"at least 'pre_lens' ({before})", after)
