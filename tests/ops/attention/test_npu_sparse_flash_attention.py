"""npu_sparse_flash_attention, its gradient and its 8-bit form against loops in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.attention.sparse_reference import attention, flat, seen, sequences
from tests.ops.families import on
from tests.ops.support import make


def lens(values):
    return None if values is None else torch.tensor(values, dtype=torch.int32).npu()


CASES = [
    ("BSND", "BSND", (2, 3, 4), (2, 9, 1), None, None, None, 1),
    ("BSND", "BSND", (2, 3, 4), (2, 9, 1), [2, 3], [9, 5], None, 2),
    ("TND", "TND", (5, 4), (12, 1), [2, 5], [7, 12], None, 1),
    ("TND", "PA_BSND", (5, 4), (4, 16, 1), [1, 5], [20, 9], [[3, 1], [2, 0]], 4),
]


def chosen(shape, size):
    """Blocks in disorder, some past the end, some rows that end early."""
    tokens = torch.Size(shape[:-1]).numel()
    order = torch.stack(
        [
            torch.randperm(max(2, 12 // size), generator=torch.Generator().manual_seed(t))
            for t in range(tokens)
        ]
    )
    order = order[:, : max(2, 6 // size)].int()
    order[1, -1] = -1
    return order.view(*shape[:-1], 1, -1).npu()


def rows_of(query, query_rope, key, key_rope, value, indices, size, batch, mode, sinks=None):
    """(row, query, keys, values) of each token."""
    query = torch.cat((flat(query), flat(query_rope)), -1)
    keys = torch.cat((flat(key), flat(key_rope)), -1)[:, 0]
    values, places = flat(value)[:, 0], indices.cpu().view(-1, indices.shape[-1]).tolist()
    for rows, columns in batch:
        for i, row in enumerate(rows):
            edge, own = seen(i, len(rows), len(columns), mode), []
            for block in places[row]:
                if block < 0:
                    break
                own += [t for t in range(block * size, block * size + size) if t < edge]
            picked = [columns[t] for t in own]
            yield row, query[row], keys[picked], values[picked]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("mode", [0, 3])
@pytest.mark.parametrize("layout,kv_layout,shape,kv_shape,lengths,kv_lengths,table,size", CASES)
def test_attention(
    dtype, mode, layout, kv_layout, shape, kv_shape, lengths, kv_lengths, table, size
):
    query, rope = make(*shape, 512, dtype=dtype), make(*shape, 64, dtype=dtype)
    key, key_rope = (
        make(*kv_shape, 512, dtype=dtype, seed=1),
        make(*kv_shape, 64, dtype=dtype, seed=2),
    )
    value, indices = make(*kv_shape, 512, dtype=dtype, seed=3), chosen(shape, size)
    dense = kv_layout != "PA_BSND"
    out, tops, sums = torch_npu.npu_sparse_flash_attention(
        query, key, value, indices, 0.06, query_rope=rope, key_rope=key_rope,
        actual_seq_lengths_query=lens(lengths), actual_seq_lengths_kv=lens(kv_lengths),
        block_table=lens(table), layout_query=layout, layout_kv=kv_layout, sparse_mode=mode,
        sparse_block_size=size, attention_mode=2, return_softmax_lse=dense,
    )  # fmt: skip
    batch = sequences(query, key, layout, kv_layout, lengths, kv_lengths, table)
    covered = set()
    for row, q, k, v in rows_of(query, rope, key, key_rope, value, indices, size, batch, mode):
        covered.add(row)
        mine = out.cpu().view(-1, *out.shape[-2:])[row].double()
        if not len(k):
            assert not mine.any()
            continue
        right, top, total = attention(q, k, v, 0.06)
        tolerance = 2e-3 if dtype == torch.float16 else 1.6e-2
        torch.testing.assert_close(mine, right, rtol=tolerance, atol=tolerance)
        if dense:
            torch.testing.assert_close(
                tops.cpu().view(-1, 4)[row].double(), top, rtol=1e-4, atol=1e-4
            )
            torch.testing.assert_close(
                sums.cpu().view(-1, 4)[row].double(), total, rtol=1e-4, atol=1e-4
            )
    for row in range(out.numel() // 512 // 4):
        assert row in covered or not out.cpu().view(-1, 4, 512)[row].any()


@pytest.mark.parametrize("layout", ["BSND", "TND"])
def test_gradients(layout):
    shape, kv_shape = ((2, 3, 4), (2, 9, 1)) if layout == "BSND" else ((5, 4), (12, 1))
    lengths, kv_lengths = (None, None) if layout == "BSND" else ([2, 5], [7, 12])
    sizes = [(*shape, 512), (*kv_shape, 512), (*kv_shape, 512), (*shape, 64), (*kv_shape, 64)]
    given = [
        make(*s, dtype=torch.bfloat16, seed=i, requires_grad=True) for i, s in enumerate(sizes)
    ]
    indices = chosen(shape, 2)
    out, tops, _ = torch_npu.npu_sparse_flash_attention(
        *given[:3], indices, 0.06, query_rope=given[3], key_rope=given[4],
        actual_seq_lengths_query=lens(lengths), actual_seq_lengths_kv=lens(kv_lengths),
        layout_query=layout, layout_kv=layout, sparse_block_size=2, attention_mode=2,
        return_softmax_lse=True,
    )  # fmt: skip
    assert not tops.requires_grad
    gradient = make(*out.shape, dtype=torch.bfloat16, seed=9)
    out.backward(gradient)
    plain = [t.detach().cpu().double().requires_grad_() for t in given]
    query = torch.cat((plain[0], plain[3]), -1).reshape(-1, 4, 576)
    keys = torch.cat((plain[1], plain[4]), -1).reshape(-1, 576)
    values = plain[2].reshape(-1, 512)
    places, total = indices.cpu().view(-1, indices.shape[-1]).tolist(), 0
    for rows, columns in sequences(given[0], given[1], layout, layout, lengths, kv_lengths):
        for i, row in enumerate(rows):
            edge, own = seen(i, len(rows), len(columns), 3), []
            for block in places[row]:
                if block < 0:
                    break
                own += [columns[t] for t in (2 * block, 2 * block + 1) if t < edge]
            if own:
                found = attention(query[row], keys[own], values[own], 0.06)[0]
                total = total + (found * gradient.cpu().double().view(-1, 4, 512)[row]).sum()
    total.backward()
    for mine, right in zip(given, plain, strict=True):
        scale = right.grad.abs().max()
        assert (mine.grad.cpu().double() - right.grad).abs().max() <= 3e-2 * scale


def test_gradients_need_the_statistics():
    query = make(1, 2, 4, 512, dtype=torch.bfloat16, requires_grad=True)
    key, ropes = make(1, 5, 1, 512, dtype=torch.bfloat16), (1, 2, 4, 64)
    out = torch_npu.npu_sparse_flash_attention(
        query, key, key, torch.zeros(1, 2, 1, 2).int().npu(), 1.0, attention_mode=2,
        query_rope=make(*ropes, dtype=torch.bfloat16), key_rope=make(1, 5, 1, 64, dtype=torch.bfloat16),
    )[0]  # fmt: skip
    with pytest.raises(RuntimeError, match="gradients need return_softmax_lse=True"):
        out.sum().backward()


def simple(**change):
    given = dict(
        query=make(1, 2, 4, 512, dtype=torch.bfloat16), key=make(1, 5, 1, 512, dtype=torch.bfloat16),
        value=make(1, 5, 1, 512, dtype=torch.bfloat16, seed=2),
        sparse_indices=torch.tensor([[[[0, 3]], [[4, 1]]]]).int().npu(), scale_value=0.1,
        query_rope=make(1, 2, 4, 64, dtype=torch.bfloat16),
        key_rope=make(1, 5, 1, 64, dtype=torch.bfloat16), attention_mode=2,
    )  # fmt: skip
    return torch_npu.npu_sparse_flash_attention(**(given | change)), given


@pytest.mark.family("A2")
def test_sinks_on_ascend950():
    sinks = make(4, low=-1, high=2)
    with on("A5"):
        found, given = simple(sinks=sinks, sparse_mode=0)
    query = torch.cat((flat(given["query"]), flat(given["query_rope"])), -1)
    keys = torch.cat((flat(given["key"]), flat(given["key_rope"])), -1)[:, 0]
    right = attention(
        query[1], keys[[4, 1]], flat(given["value"])[[4, 1], 0], 0.1, sinks.cpu().double()
    )[0]
    torch.testing.assert_close(found[0][0, 1].cpu().double(), right, rtol=2e-2, atol=2e-2)
    with pytest.raises(RuntimeError, match="'sinks' must be on a chip of series A5"):
        simple(sinks=sinks)


def test_sinks_and_pages():
    key = make(1, 16, 1, 512, dtype=torch.bfloat16)
    paged = dict(
        key=key, value=key, key_rope=make(1, 16, 1, 64, dtype=torch.bfloat16), layout_kv="PA_BSND",
        block_table=lens([[0]]), actual_seq_lengths_kv=lens([5]),
    )  # fmt: skip
    with (
        on("A5"),
        pytest.raises(RuntimeError, match="'sinks' must be None with layout_kv 'PA_BSND'"),
    ):
        simple(sinks=make(4), **paged)


@pytest.mark.family("A2")
@pytest.mark.parametrize(
    "change,message",
    [
        ({"attention_mode": 0}, "'attention_mode' must be 2, but received 0"),
        ({"query_rope": None}, "'query_rope' must be given with attention_mode 2"),
        ({"sparse_block_size": 3}, "'sparse_block_size' must be a power of two up to 128"),
        ({"sparse_mode": 2}, "'sparse_mode' must be 0 or 3"),
        ({"layout_kv": "TND"}, "'layout_kv' must be 'BSND'"),
        ({"next_tokens": 1}, "'next_tokens' must be left at"),
        ({"query": make(1, 2, 3, 512, dtype=torch.bfloat16)}, "'query' must be of 1, 2, 4"),
    ],
)
def test_refusals(change, message):
    with pytest.raises(RuntimeError, match=f"npu_sparse_flash_attention: argument {message}"):
        simple(**change)


def test_no_chosen_keys():
    """Queries without any position give zeros."""
    query, rope = make(2, 1, 4, 512, dtype=torch.float16), make(2, 1, 4, 64, dtype=torch.float16)
    key, key_rope = make(2, 9, 1, 512, dtype=torch.float16), make(2, 9, 1, 64, dtype=torch.float16)
    none = torch.empty(2, 1, 1, 0, dtype=torch.int32, device="npu")
    out, tops, sums = torch_npu.npu_sparse_flash_attention(
        query, key, key, none, 0.06, query_rope=rope, key_rope=key_rope, attention_mode=2
    )
    assert out.shape == query.shape and not out.any()
