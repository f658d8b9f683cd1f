"""npu_lightning_indexer and its gradient against loops in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.attention.sparse_reference import flat, seen, sequences
from tests.ops.families import on
from tests.ops.support import make


def lens(values):
    return None if values is None else torch.tensor(values, dtype=torch.int32).npu()


def scores(query, key, weights, batch, mode):
    """For each query token, the scores of the keys that it sees."""
    query, key = flat(query), flat(key)[:, 0]
    weights = weights.detach().cpu().reshape(-1, weights.shape[-1]).double()
    found = {}
    for rows, columns in batch:
        for i, row in enumerate(rows):
            own = key[columns[: seen(i, len(rows), len(columns), mode)]]
            found[row] = ((query[row] @ own.T).relu() * weights[row][:, None]).sum(0)
    return found


CASES = [
    ("BSND", "BSND", (2, 3, 8, 128), (2, 9, 1, 128), None, None, None),
    ("BSND", "BSND", (2, 3, 8, 128), (2, 9, 1, 128), [2, 3], [9, 5], None),
    ("TND", "TND", (5, 8, 128), (12, 1, 128), [2, 5], [7, 12], None),
    ("TND", "PA_BSND", (5, 8, 128), (4, 16, 1, 128), [1, 5], [20, 9], [[3, 1], [2, 0]]),
    ("BSND", "PA_BSND", (2, 1, 8, 128), (4, 16, 1, 128), None, [17, 32], [[3, 1], [2, 0]]),
]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("mode", [0, 3])
@pytest.mark.parametrize("layout,kv_layout,shape,kv_shape,lengths,kv_lengths,table", CASES)
def test_best_keys(dtype, mode, layout, kv_layout, shape, kv_shape, lengths, kv_lengths, table):
    query, key = make(*shape, dtype=dtype), make(*kv_shape, dtype=dtype, seed=1)
    weights, count = make(*shape[:-1], dtype=dtype, seed=2), 6
    values = kv_layout != "PA_BSND"
    indices, found = torch_npu.npu_lightning_indexer(
        query, key, weights, actual_seq_lengths_query=lens(lengths),
        actual_seq_lengths_key=lens(kv_lengths), block_table=lens(table), layout_query=layout,
        layout_key=kv_layout, sparse_count=count, sparse_mode=mode, return_value=values,
    )  # fmt: skip
    batch = sequences(query, key, layout, kv_layout, lengths, kv_lengths, table)
    right = scores(query, key, weights, batch, mode)
    assert indices.shape == (*shape[:-2], 1, count) and indices.dtype == torch.int32
    got = indices.cpu().view(-1, count).tolist()
    for row, chosen in enumerate(got):
        known = right.get(row, torch.empty(0, dtype=torch.float64))
        kept = [i for i in chosen if i >= 0]
        assert len(kept) == len(set(kept)) == min(count, len(known))
        best = known.sort(descending=True).values[: len(kept)]
        torch.testing.assert_close(known[kept], best, rtol=1e-5, atol=1e-4)
        if values:
            mine = found.cpu().view(-1, count)[row, : len(kept)].double()
            torch.testing.assert_close(mine, best, rtol=1e-2, atol=1e-2)
    assert values or found.numel() == 0


def test_float32_weights():
    query, key = make(1, 2, 4, 128, dtype=torch.float16), make(1, 5, 1, 128, dtype=torch.float16)
    torch_npu.npu_lightning_indexer(query, key, make(1, 2, 4), sparse_count=3)
    with on("A5"), pytest.raises(RuntimeError, match="'weights' must be of dtype torch.float16"):
        torch_npu.npu_lightning_indexer(query, key, make(1, 2, 4), sparse_count=3)


@pytest.mark.parametrize("layout", ["BSND", "TND"])
def test_gradients_of_the_scores(layout):
    shape, kv_shape = (
        ((2, 3, 4, 128), (2, 6, 1, 128)) if layout == "BSND" else ((5, 4, 128), (9, 1, 128))
    )
    lengths, kv_lengths = (None, None) if layout == "BSND" else ([2, 5], [4, 9])
    given = [
        make(*s, dtype=torch.bfloat16, seed=i, requires_grad=True)
        for i, s in enumerate((shape, kv_shape, shape[:-1]))
    ]
    indices, values = torch_npu.npu_lightning_indexer(
        *given, actual_seq_lengths_query=lens(lengths), actual_seq_lengths_key=lens(kv_lengths),
        layout_query=layout, layout_key=layout, sparse_count=4, return_value=True,
    )  # fmt: skip
    gradient = make(*values.shape, dtype=torch.bfloat16, seed=7)
    values.backward(gradient)
    plain = [t.detach().cpu().double().requires_grad_() for t in given]
    query, key = (t.reshape(-1, *t.shape[-2:]) for t in plain[:2])
    weights = plain[2].reshape(-1, 4)
    batch = sequences(given[0], given[1], layout, layout, lengths, kv_lengths)
    total, places = 0, indices.cpu().view(-1, 4).tolist()
    factors = gradient.cpu().double().view(-1, 4)
    for rows, columns in batch:
        for row in rows:
            for n, place in enumerate(places[row]):
                if place >= 0:
                    product = (query[row] @ key[columns[place], 0]).relu()
                    total = total + factors[row, n] * (product * weights[row]).sum()
    total.backward()
    for mine, right in zip(given, plain, strict=True):
        scale = right.grad.abs().max()
        assert (mine.grad.cpu().double() - right.grad).abs().max() <= 1e-2 * scale
        assert mine.grad.dtype == torch.bfloat16


@pytest.mark.parametrize(
    "options,message",
    [
        ({"sparse_count": 0}, "'sparse_count' must be from 1 to 2048"),
        ({"sparse_count": 2049}, "'sparse_count' must be from 1 to 2048"),
        ({"sparse_mode": 1}, "'sparse_mode' must be 0 or 3, but received 1"),
        ({"layout_query": "BNSD"}, "'layout_query' must be 'BSND' or 'TND'"),
        ({"layout_key": "TND"}, "'layout_key' must be 'BSND', as 'layout_query'"),
        ({"layout_key": "PA_BSND"}, "'actual_seq_lengths_key' must be given"),
        ({"pre_tokens": 5}, "'pre_tokens' must be left at"),
        ({"actual_seq_lengths_key": lens([9, 10])}, "'actual_seq_lengths_key' must be from 0 to 9"),
    ],
)
def test_refusals(options, message):
    given = [make(*s, dtype=torch.float16) for s in ((2, 3, 8, 128), (2, 9, 1, 128), (2, 3, 8))]
    with pytest.raises(RuntimeError, match=f"npu_lightning_indexer: argument {message}"):
        torch_npu.npu_lightning_indexer(*given, **({"sparse_count": 4} | options))


@pytest.mark.parametrize(
    "shape,kv_shape,message",
    [
        ((2, 3, 8, 64), (2, 9, 1, 128), "'query' must be of head size 128"),
        ((2, 3, 8, 128), (2, 9, 2, 128), "'key' must be of 1 head"),
        ((2, 3, 65, 128), (2, 9, 1, 128), "'query' must be of at most 64 heads"),
    ],
)
def test_sizes(shape, kv_shape, message):
    given = [make(*s, dtype=torch.float16) for s in (shape, kv_shape, shape[:-1])]
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_lightning_indexer(*given, sparse_count=4)


def gradient_inputs(**change):
    half = torch.float16
    given = dict(
        query=make(1, 2, 4, 128, dtype=half), key=make(1, 5, 1, 128, dtype=half),
        dy=make(1, 2, 1, 3, dtype=half), sparse_indices=torch.tensor([0, 2, -1, 4, 1, 0]).int().view(1, 2, 1, 3).npu(),
        weights=make(1, 2, 4, dtype=half),
    )  # fmt: skip
    return given | change


def test_arguments_that_the_gradient_does_not_read():
    plain = torch_npu.npu_lightning_indexer_grad(**gradient_inputs())
    other = torch_npu.npu_lightning_indexer_grad(
        **gradient_inputs(layout=None, sparse_mode=None, pre_tokens=4, next_tokens=None)
    )
    assert all(torch.equal(a, b) for a, b in zip(plain, other, strict=True))


def test_the_gradient_without_the_dimension_of_the_head():
    given = gradient_inputs()
    plain = torch_npu.npu_lightning_indexer_grad(**given)
    for names in (("dy",), ("dy", "sparse_indices")):
        flat = given | {name: given[name].squeeze(2) for name in names}
        other = torch_npu.npu_lightning_indexer_grad(**flat)
        assert all(torch.equal(a, b) for a, b in zip(plain, other, strict=True))


@pytest.mark.parametrize(
    "change,message",
    [
        ({"dy": make(1, 3, 3, dtype=torch.float16)}, r"'dy' must be of shape \(1, 2, 3\)"),
        ({"weights": make(1, 2, 4)}, "'weights' must be of the dtype of 'query'"),
        ({"query": make(1, 2, 4, 64, dtype=torch.float16)}, "'query' must be of head size 128"),
        ({"layout": "SBND"}, "'layout' must be 'BSND' or 'TND'"),
        ({"sparse_indices": torch.zeros(1, 2, 1, 2049).int().npu()}, "'sparse_indices' must be of 1 to 2048 keys"),
        ({"sparse_indices": torch.full((1, 2, 1, 3), 5).int().npu()}, "'sparse_indices' must be below 5"),
    ],
)  # fmt: skip
def test_refusals_of_the_gradient(change, message):
    with pytest.raises(RuntimeError, match=f"npu_lightning_indexer_grad: argument {message}"):
        torch_npu.npu_lightning_indexer_grad(**gradient_inputs(**change))


def test_slopes_are_multiplied_in_half_precision():
    """The card keeps dy times weight in the dtype of the query: 90000 is infinite in float16, though dq would be 88."""
    query, key = (torch.zeros(1, 1, 1, 128, dtype=torch.float16, device="npu") for _ in range(2))
    query[..., 0], key[..., 0] = 1.0, 2.0**-10
    place = torch.zeros(1, 1, 1, 1, dtype=torch.int32, device="npu")
    dy = torch.full((1, 1, 1, 1), 300.0, dtype=torch.float16, device="npu")
    weights = torch.full((1, 1, 1), 300.0, dtype=torch.float16, device="npu")
    of_query, _, of_weights = torch_npu.npu_lightning_indexer_grad(query, key, dy, place, weights)
    assert of_query[0, 0, 0, 0].item() == float("inf")
    assert of_weights.item() == torch.tensor(300 * 2.0**-10).half().item()
