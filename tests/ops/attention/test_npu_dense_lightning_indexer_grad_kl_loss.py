"""The loss of a lightning indexer (softmax_lse, dense and sparse) against autograd in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.attention.sparse_reference import seen, sequences
from tests.ops.support import make

#: layout, tokens of queries and keys, sums of lengths
CASES = [("BSND", (2, 3), (2, 5), None, None), ("TND", (5,), (9,), [2, 5], [4, 9])]


def scores(query, key, weights):
    return ((query @ key.T).relu() * weights[:, None]).sum(0)


def rows(layout, query, key, lengths, kv_lengths):
    """(query token, key tokens that it sees) of every query."""
    for own, columns in sequences(query, key, layout, layout, lengths, kv_lengths):
        for i, row in enumerate(own):
            yield row, columns[: seen(i, len(own), len(columns), 3)]


def flat(tensor, rank):
    return tensor.detach().cpu().double().reshape(-1, *tensor.shape[-rank:])


def lengths_of(lengths, kv_lengths):
    return {"actual_seq_qlen": lengths, "actual_seq_klen": kv_lengths}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout,tokens,kv_tokens,lengths,kv_lengths", CASES)
def test_softmax_lse(dtype, layout, tokens, kv_tokens, lengths, kv_lengths):
    query, key = make(*tokens, 8, 128, dtype=dtype), make(*kv_tokens, 1, 128, dtype=dtype, seed=1)
    weights = make(*tokens, 8, seed=2)
    tops, sums = torch_npu.npu_dense_lightning_indexer_softmax_lse(
        query, key, weights, layout=layout, **lengths_of(lengths, kv_lengths)
    )
    assert tops.shape == ((1, *tokens) if layout == "TND" else (tokens[0], 1, tokens[1]))
    for row, own in rows(layout, query, key, lengths, kv_lengths):
        right = scores(flat(query, 2)[row], flat(key, 2)[own, 0], flat(weights, 1)[row])
        found = tops.cpu().view(-1)[row].double(), sums.cpu().view(-1)[row].double()
        torch.testing.assert_close(found[0], right.max(), rtol=1e-5, atol=1e-5)
        total = (right - right.max()).exp().sum()
        torch.testing.assert_close(found[1], total, rtol=1e-4, atol=1e-5)


def attention_statistics(query, key, pairs, scale, heads):
    """Maxima and sums (tokens, heads) of the attention's scores over the keys of each pair."""
    tops, sums = (torch.ones(query.shape[0], heads, dtype=torch.float64) for _ in range(2))
    for row, own in pairs:
        for head in range(heads):
            keys = key[own, head if key.shape[1] > 1 else 0]
            values = keys @ query[row, head] * scale
            tops[row, head] = values.max()
            sums[row, head] = (values - values.max()).exp().sum()
    return tops, sums


def shaped(values, layout, tokens, kv_heads):
    """(tokens, N) as (B, N2, S, G) or (N2, T, G), float32 on the device."""
    values = values.float().view(*tokens, kv_heads, -1)
    order = (1, 0, 2) if layout == "TND" else (0, 2, 1, 3)
    return values.permute(order).contiguous().npu()


def loss_of(query, key, index, index_key, weights, pairs, tops, sums, scale):
    total = 0
    for row, own in pairs:
        p = 0
        for head in range(query.shape[1]):
            values = key[own, head if key.shape[1] > 1 else 0] @ query[row, head] * scale
            p = p + (values - tops[row, head]).exp() / sums[row, head]
        p = p / query.shape[1]
        log = scores(index[row], index_key[own, 0], weights[row]).log_softmax(0)
        total = total + (p * (p.log() - log)).sum()
    return total


def compare(found, given, loss, tolerance):
    torch.testing.assert_close(found[3].cpu().double(), loss.detach().view(1), rtol=1e-3, atol=1e-3)
    for mine, right in zip(found[:3], given, strict=True):
        scale = right.grad.abs().max()
        difference = mine.cpu().double().reshape(right.shape) - right.grad
        assert difference.abs().max() <= tolerance * scale


@pytest.mark.parametrize("ropes", [False, True])
@pytest.mark.parametrize("layout,tokens,kv_tokens,lengths,kv_lengths", CASES)
def test_dense(layout, tokens, kv_tokens, lengths, kv_lengths, ropes):
    half = torch.float16
    query, key = make(*tokens, 32, 128, dtype=half), make(*kv_tokens, 32, 128, dtype=half, seed=1)
    index, index_key = (
        make(*tokens, 8, 128, dtype=half, seed=2),
        make(*kv_tokens, 1, 128, dtype=half, seed=3),
    )
    weights = make(*tokens, 8, dtype=half, low=-0.1, high=0.1, seed=4)
    options, plain_query, plain_key = {}, flat(query, 2), flat(key, 2)
    if ropes:
        options = {
            "query_rope": make(*tokens, 32, 64, dtype=half, seed=5),
            "key_rope": make(*kv_tokens, 32, 64, dtype=half, seed=6),
        }
        plain_query = torch.cat((plain_query, flat(options["query_rope"], 2)), -1)
        plain_key = torch.cat((plain_key, flat(options["key_rope"], 2)), -1)
    pairs = list(rows(layout, query, key, lengths, kv_lengths))
    tops, sums = attention_statistics(plain_query, plain_key, pairs, 0.1, 32)
    both = lengths_of(lengths, kv_lengths)
    own = torch_npu.npu_dense_lightning_indexer_softmax_lse(
        index, index_key, weights, layout=layout, **both
    )
    statistics = [shaped(t, layout, tokens, 32) for t in (tops, sums)]
    found = torch_npu.npu_dense_lightning_indexer_grad_kl_loss(
        query,
        key,
        index,
        index_key,
        weights,
        *statistics,
        *own,
        0.1,
        layout=layout,
        **both,
        **options,
    )
    given = [flat(index, 2), flat(index_key, 2), flat(weights, 1)]
    given = [t.requires_grad_() for t in given]
    loss = loss_of(plain_query, plain_key, *given, pairs, tops, sums, 0.1)
    loss.backward()
    compare(found, given, loss, 1e-2)


@pytest.mark.parametrize("layout,tokens,kv_tokens,lengths,kv_lengths", CASES)
def test_sparse(layout, tokens, kv_tokens, lengths, kv_lengths):
    half = torch.float16
    query, key = make(*tokens, 32, 512, dtype=half), make(*kv_tokens, 1, 512, dtype=half, seed=1)
    ropes = {
        "query_rope": make(*tokens, 32, 64, dtype=half, seed=5),
        "key_rope": make(*kv_tokens, 1, 64, dtype=half, seed=6),
    }
    whole = torch.cat((flat(query, 2), flat(ropes["query_rope"], 2)), -1)
    whole_key = torch.cat((flat(key, 2), flat(ropes["key_rope"], 2)), -1)
    index, index_key = (
        make(*tokens, 8, 128, dtype=half, seed=2),
        make(*kv_tokens, 1, 128, dtype=half, seed=3),
    )
    weights = make(*tokens, 8, dtype=half, low=-0.1, high=0.1, seed=4)
    pairs, places = [], torch.full((len(flat(query, 2)), 1024), -1, dtype=torch.int32)
    for row, own in rows(layout, query, key, lengths, kv_lengths):
        order = torch.randperm(len(own), generator=torch.Generator().manual_seed(row))[:3]
        places[row, : len(order)] = order.int()
        pairs.append((row, [own[i] for i in order.tolist()]))
    tops, sums = attention_statistics(whole, whole_key, pairs, 0.05, 32)
    found = torch_npu.npu_sparse_lightning_indexer_grad_kl_loss(
        query, key, index, index_key, weights, places.view(*tokens, 1, 1024).npu(),
        shaped(tops, layout, tokens, 1), shaped(sums, layout, tokens, 1), 0.05, layout=layout,
        **lengths_of(lengths, kv_lengths), **ropes,
    )  # fmt: skip
    given = [flat(index, 2), flat(index_key, 2), flat(weights, 1)]
    given = [t.requires_grad_() for t in given]
    loss = loss_of(whole, whole_key, *given, pairs, tops, sums, 0.05)
    loss.backward()
    compare(found, given, loss, 1e-2)


def test_sinks_normalize_the_attention():
    half, pairs = torch.float16, [(0, [0, 1, 2]), (1, [0, 1, 2, 3])]
    query, key = make(1, 2, 32, 512, dtype=half), make(1, 4, 1, 512, dtype=half, seed=1)
    index, index_key = (
        make(1, 2, 8, 128, dtype=half, seed=2),
        make(1, 4, 1, 128, dtype=half, seed=3),
    )
    weights = make(1, 2, 8, dtype=half, low=-0.1, high=0.1, seed=4)
    places = torch.full((1, 2, 1, 1024), -1).int()
    places[0, :, 0, :4] = torch.tensor([[0, 1, 2, -1], [0, 1, 2, 3]])
    places = places.npu()
    zeros = {"query_rope": (1, 2, 32, 64), "key_rope": (1, 4, 1, 64)}
    ropes = {n: torch.zeros(s, dtype=half).npu() for n, s in zeros.items()}
    tops, sums = attention_statistics(flat(query, 2), flat(key, 2), pairs, 0.05, 32)
    call = torch_npu.npu_sparse_lightning_indexer_grad_kl_loss
    arguments = (query, key, index, index_key, weights, places)
    plain = call(*arguments, *(shaped(t, "BSND", (1, 2), 1) for t in (tops, sums)), 0.05, **ropes)
    doubled = call(
        *arguments, *(shaped(t, "BSND", (1, 2), 1) for t in (tops, sums * 2)), 0.05,
        sinks=torch.zeros(32).npu(), **ropes,
    )  # fmt: skip
    for mine, right in zip(doubled, plain, strict=True):
        torch.testing.assert_close(mine.cpu(), right.cpu(), rtol=1e-2, atol=1e-3)


@pytest.mark.family("A2")
@pytest.mark.parametrize(
    "change,message",
    [
        ({"sparse_mode": 0}, "'sparse_mode' must be 3"),
        ({"layout": "TND"}, "'query_index' must be a tensor of 3 dimensions"),
        ({"pre_tokens": 1}, "'pre_tokens' must be left at"),
        ({"weights": make(1, 3, 4)}, r"'weights' must be of shape \(1, 3, 8\)"),
        ({"query_index": make(1, 3, 4, 128, dtype=torch.float16)}, "'query_index' must be of 8, 16, 32 or 64 heads"),
        ({"key_index": make(1, 2, 1, 128, dtype=torch.float16)}, "'query_index' must be of at most 2 rows"),
    ],
)  # fmt: skip
def test_refusals(change, message):
    given = dict(
        query_index=make(1, 3, 8, 128, dtype=torch.float16), weights=make(1, 3, 8),
        key_index=make(1, 5, 1, 128, dtype=torch.float16),
    )  # fmt: skip
    with pytest.raises(RuntimeError, match=f"softmax_lse: argument {message}"):
        torch_npu.npu_dense_lightning_indexer_softmax_lse(**(given | change))
