"""Speculative decoding: the tree of drafted tokens."""

from __future__ import annotations

import torch

from softnpu.contrib.sgl_kernel_npu._define import sgl_op
from torch_npu.ops import _check as must

__all__ = ["build_tree_kernel_efficient"]

FULL_MASK, QLEN_ONLY = 0, 1


@sgl_op(
    "build_tree_kernel_efficient(Tensor parent_list, Tensor selected_index, "
    "Tensor verified_seq_len, Tensor tree_mask, Tensor positions, Tensor retrive_index, "
    "Tensor retrive_next_token, Tensor retrive_next_sibling, int topk, int depth, "
    "int draft_token_num, int tree_mask_mode) -> ()"
)
def build_tree_kernel_efficient(
    parent_list,
    selected_index,
    verified_seq_len,
    tree_mask,
    positions,
    retrive_index,
    retrive_next_token,
    retrive_next_sibling,
    topk,
    depth,
    draft_token_num,
    tree_mask_mode,
):
    """The tree of each request from its chosen candidates: who sees whom, positions, first children and siblings.

    Token 0 is the root; token t is candidate `selected_index[t - 1]`, whose parent is entry candidate // topk of
    `parent_list` (0: the root). With FULL_MASK the row of each token in the flat `tree_mask` has the verified tokens
    before the drafted ones, and these are left as they are. In the other mode the card writes every row of request r to
    the same place, (draft_token_num + 1) * draft_token_num * r, so that the last one stays; here too.
    The last five tensors are written, though the schema does not say so.
    """
    count, lengths = draft_token_num, verified_seq_len.tolist()
    entries = topk * (depth - 1) + 1
    selected = selected_index.reshape(-1)[: len(lengths) * (count - 1)]
    selected = selected.view(len(lengths), count - 1).tolist()
    parents = parent_list.reshape(-1).tolist()
    results = (positions, retrive_index, retrive_next_token, retrive_next_sibling)
    flat = [tensor.view(-1) for tensor in results]
    mask = tree_mask.view(-1)
    start = 0
    for request, length in enumerate(lengths):
        chosen = selected[request]
        own = parents[request * entries : (request + 1) * entries]
        above = [_parent(chosen, own, topk, token) for token in range(count)]
        child, sibling = [-1] * count, [-1] * count
        for token in range(count - 1, 0, -1):
            child[above[token]], sibling[token] = token, child[above[token]]
        depths = []
        for token in range(count):
            row, place, steps = [True] + [False] * (count - 1), token, 0
            while place:
                must.hold(steps < count, "parent_list", "without a cycle", own)
                row[place], place, steps = True, above[place], steps + 1
            depths.append(length + steps)
            at = start + (length + count) * token + length
            if tree_mask_mode != FULL_MASK:
                at = count * count * request + count * request
            inside = at + count <= mask.numel()
            must.hold(inside, "tree_mask", f"of at least {at + count} elements", mask.numel())
            mask[at : at + count] = torch.tensor(row)
        part = slice(request * count, (request + 1) * count)
        order = range(request * count, (request + 1) * count)
        for target, values in zip(flat, (depths, order, child, sibling), strict=True):
            target[part] = torch.tensor(list(values))
        start += (length + count) * count


def _parent(chosen, parents, topk, token):
    """The token above this one; what was not chosen together with its parent is refused, for the card reads on for ever."""
    if token == 0 or chosen[token - 1] // topk == 0:
        return 0
    entry = chosen[token - 1] // topk
    inside = 0 <= entry < len(parents)
    must.hold(inside, "selected_index", f"below {len(parents) * topk}", chosen[token - 1])
    found = parents[entry] in chosen
    must.hold(found, "selected_index", f"with {parents[entry]}, the parent of one of them", chosen)
    return chosen.index(parents[entry]) + 1


@build_tree_kernel_efficient.meta
def _():
    return None


@build_tree_kernel_efficient.check
def _(tree_mask, topk, depth, draft_token_num, tree_mask_mode, **rest):
    must.choice("tree_mask_mode", tree_mask_mode, (FULL_MASK, QLEN_ONLY))
    for name, value in (("topk", topk), ("depth", depth), ("draft_token_num", draft_token_num)):
        must.hold(value > 0, name, "positive", value)
    must.dtype("tree_mask", tree_mask, torch.bool)
    must.hold(tree_mask.is_contiguous(), "tree_mask", "contiguous", tree_mask.stride())
    for name, tensor in rest.items():
        must.dtype(name, tensor, torch.int64)
        must.hold(tensor.is_contiguous(), name, "contiguous", tensor.stride())
    requests = rest["verified_seq_len"].numel()
    sizes = {
        "parent_list": requests * (topk * (depth - 1) + 1),
        "selected_index": requests * (draft_token_num - 1),
    }
    for name, tensor in rest.items():
        size = sizes.get(name, requests * draft_token_num)
        fits = name == "verified_seq_len" or tensor.numel() >= size
        must.hold(fits, name, f"of at least {size} elements", tuple(tensor.shape))
