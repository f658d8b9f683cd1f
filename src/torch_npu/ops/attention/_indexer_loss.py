"""The loss that trains a lightning indexer, and its gradients: KL(p || softmax(I)) of the attention p and the scores I.

p is the mean over heads of the attention weights; I the sum over heads of weight times ReLU(q k) (see `_indexer`).
"""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops.attention import _sparse

#: below which the card's logarithms do not go
LEAST = 1e-8


def divergence(target: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
    """The sum over all elements of p (log p - log s)."""
    logs = target.clamp(min=LEAST).log() - found.clamp(min=LEAST).log()
    return (target * logs).sum()


def attention_weights(query, key, peak, total, scale, unseen):
    """(rows, N, n) softmax of query (rows, N, D) over key (n, N or 1, D) or (rows, n, D) with given maxima and sums."""
    if key.dim() == 3 and key.shape[1] == query.shape[1] and key.shape[0] == unseen.shape[-1]:
        scores = torch.einsum("rhd,nhd->rhn", query, key)
    else:
        scores = query @ key.mT
    scores = (scores * scale).masked_fill(unseen.unsqueeze(1), -torch.inf)
    return (scores - peak.unsqueeze(-1)).exp() / total.unsqueeze(-1)


def gradients(query, key, weights, difference, dtype):
    """Of I at every position, for its gradient `difference` (rows, n): query (rows, N, D), key (n, D), weights (rows, N).

    The slopes are multiplied in `dtype`, as on the card.
    """
    product = query @ key.t()  # (rows, N, n)
    of_weights = (product.relu() * difference.unsqueeze(1)).sum(-1)
    slope = (product > 0) * difference.unsqueeze(1) * weights.unsqueeze(-1)
    slope = slope.to(dtype).to(query.dtype)
    return slope @ key, torch.einsum("rhn,rhd->nd", slope, query), of_weights


def statistics(tensor: torch.Tensor, span: _sparse.Span, layout: str, part: slice) -> torch.Tensor:
    """Rows (rows, N) of maxima or sums (B, N2, S, G) or (N2, T, G)."""
    if layout == "TND":
        own = tensor[:, span.start + part.start : span.start + part.stop]
    else:
        own = tensor[span.index, :, part]
    return own.transpose(0, 1).flatten(1)


def index_statistics(tensor, span, layout, part) -> torch.Tensor:
    """Rows (rows, 1) of maxima or sums (B, 1, S) or (1, T)."""
    if layout == "TND":
        return tensor[0, span.start + part.start : span.start + part.stop].unsqueeze(-1)
    return tensor[span.index, 0, part].unsqueeze(-1)


def joined(tensor, rope):
    """(T, N, D) with the rope behind, where there is one."""
    rows = _sparse.tokens(tensor)
    return wide(rows if rope is None else torch.cat((rows, _sparse.tokens(rope)), -1))


# --- constraints ----------------------------------------------------------------------------------------

INDEX_HEADS = (8, 16, 32, 64)
HEADS = (32, 64, 128)
#: heads of the attention and of the indexer that Ascend950 takes together, besides
PAIR = (48, 24)


def check_index(query_index, key_index, weights, layout, lengths, kv_lengths):
    """What the indexer's own tensors ask for."""
    _sparse.check_family("query_index", "A2", "A3", "A5")
    must.dtype("query_index", query_index, torch.float16, torch.bfloat16)
    must.same_dtype("key_index", key_index, "query_index", query_index)
    must.dtype("weights", weights, query_index.dtype, torch.float32)
    must.choice("layout", layout, ("BSND", "TND"))
    rank = 4 if layout == "BSND" else 3
    must.ndim("query_index", query_index, rank)
    must.ndim("key_index", key_index, rank)
    heads, size = query_index.shape[-2:]
    counts = sorted((*INDEX_HEADS, *((PAIR[1],) if _sparse.new_chip() else ())))
    must.hold(heads in counts, "query_index", f"of {must.one_of(counts)} heads", heads)
    must.hold(size == 128, "query_index", "of head size 128", size)
    fits = tuple(key_index.shape[-2:]) == (1, 128)
    must.hold(fits, "key_index", "of 1 head of 128", tuple(key_index.shape))
    must.shape("weights", weights, tuple(query_index.shape[:-1]))
    if layout == "BSND":
        must.shape("key_index", key_index, (query_index.shape[0], None, 1, 128))
        rows, columns = query_index.shape[1], key_index.shape[1]
        must.hold(rows <= columns, "query_index", f"of at most {columns} rows, the keys", rows)
        return
    lengths = _sums("actual_seq_qlen", lengths, query_index)
    kv_lengths = _sums("actual_seq_klen", kv_lengths, key_index)
    expected = f"of {len(lengths)} sums"
    must.hold(len(lengths) == len(kv_lengths), "actual_seq_klen", expected, len(kv_lengths))
    if all(type(n) is int for n in (*lengths, *kv_lengths)):
        each, kv_each = _differences(lengths), _differences(kv_lengths)
        fits = all(rows <= columns for rows, columns in zip(each, kv_each, strict=True))
        must.hold(fits, "actual_seq_qlen", f"of sequences of at most {kv_each} tokens", each)


def _sums(name, given, tensor):
    """The running sums of lengths, which end inside the tensor."""
    must.present(name, given, "with layout 'TND'")
    numbers = list(given)
    if all(type(n) is int for n in numbers):
        fine = numbers == sorted(numbers) and (not numbers or numbers[0] >= 0)
        fine = fine and (not numbers or numbers[-1] <= tensor.shape[0])
        must.hold(fine, name, f"sums of lengths up to {tensor.shape[0]}", numbers)
    return numbers


def _differences(sums):
    return [b - a for a, b in zip([0, *sums[:-1]], sums, strict=True)]


def check_attention(query, key, query_index, key_index, ropes, statistics_, kv_heads, size):
    """What the attention's tensors ask for."""
    must.same_dtype("query", query, "query_index", query_index)
    must.same_dtype("key", key, "query_index", query_index)
    must.shape("query", query, (*query_index.shape[:-2], None, size))
    heads = query.shape[-2]
    counts = sorted((*HEADS, *((PAIR[0],) if _sparse.new_chip() else ())))
    must.hold(heads in counts, "query", f"of {must.one_of(counts)} heads", heads)
    own = query_index.shape[-2]
    pairs = (heads == PAIR[0]) == (own == PAIR[1])
    must.hold(pairs, "query", f"of {PAIR[0]} heads beside {PAIR[1]} of 'query_index'", (heads, own))
    kv_heads = heads if kv_heads is None else kv_heads
    must.shape("key", key, (*key_index.shape[:-2], kv_heads, size))
    for (name, rope), tensor in zip(ropes.items(), (query, key), strict=True):
        must.same_dtype(name, rope, "query", query)
        must.shape(name, rope, (*tensor.shape[:-1], 64))
    same = (ropes["query_rope"] is None) == (ropes["key_rope"] is None)
    must.hold(same, "query_rope", "given together with 'key_rope'", "one of them")
    group = heads // kv_heads
    tokens = query.shape[:-2]
    shape = (
        (kv_heads, *tokens, group) if query.dim() == 3 else (tokens[0], kv_heads, tokens[1], group)
    )
    for name, tensor in statistics_.items():
        must.dtype(name, tensor, torch.float32)
        must.shape(name, tensor, shape)
