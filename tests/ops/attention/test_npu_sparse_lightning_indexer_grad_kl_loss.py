"""npu_sparse_lightning_indexer_grad_kl_loss: refusals; its numbers are in the tests of the dense form."""

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.support import make


def inputs(**change):
    half = torch.bfloat16
    given = dict(
        query=make(1, 3, 32, 512, dtype=half), key=make(1, 5, 1, 512, dtype=half),
        query_index=make(1, 3, 8, 128, dtype=half), key_index=make(1, 5, 1, 128, dtype=half),
        weights=make(1, 3, 8, dtype=half), sparse_indices=torch.zeros(1, 3, 1, 1024).int().npu(),
        softmax_max=make(1, 1, 3, 32), softmax_sum=make(1, 1, 3, 32, low=1, high=2), scale_value=0.1,
        query_rope=make(1, 3, 32, 64, dtype=half), key_rope=make(1, 5, 1, 64, dtype=half),
    )  # fmt: skip
    return given | change


@pytest.mark.parametrize(
    "change,message",
    [
        ({"sparse_indices": torch.zeros(1, 3, 1, 1024).long().npu()}, "'sparse_indices' must be of dtype torch.int32"),
        ({"query": make(1, 3, 16, 512, dtype=torch.bfloat16)}, "'query' must be of 32, 64 or 128 heads"),
        ({"key": make(1, 5, 1, 128, dtype=torch.bfloat16)}, r"'key' must be of shape \(1, 5, 1, 512\)"),
        ({"softmax_max": make(1, 3, 32)}, r"'softmax_max' must be of shape \(1, 1, 3, 32\)"),
        ({"key_rope": None}, "'key_rope' must be given"),
        ({"sparse_indices": torch.zeros(1, 3, 1, 4).int().npu()}, "'sparse_indices' must be of a multiple of 1024 keys"),
        ({"query": make(1, 3, 48, 512, dtype=torch.bfloat16)}, "'query' must be of 32, 64 or 128 heads"),
        ({"sinks": make(8)}, r"'sinks' must be of shape \(32\)"),
    ],
)  # fmt: skip
def test_refusals(change, message):
    with pytest.raises(RuntimeError, match=f"grad_kl_loss: argument {message}"):
        torch_npu.npu_sparse_lightning_indexer_grad_kl_loss(**inputs(**change))


def test_rows_without_keys():
    places = torch.full((1, 3, 1, 1024), -1, dtype=torch.int32).npu()
    found = torch_npu.npu_sparse_lightning_indexer_grad_kl_loss(**inputs(sparse_indices=places))
    assert all(not t.any() for t in found)


def test_arguments_that_are_not_read():
    plain = torch_npu.npu_sparse_lightning_indexer_grad_kl_loss(**inputs())
    options = {"layout": None, "sparse_mode": None, "pre_tokens": 7, "next_tokens": 0}
    other = torch_npu.npu_sparse_lightning_indexer_grad_kl_loss(**inputs(**options))
    assert all(torch.equal(a, b) for a, b in zip(plain, other, strict=True))


def test_heads_on_ascend950():
    half = torch.bfloat16
    pair = dict(
        query=make(1, 3, 48, 512, dtype=half), query_rope=make(1, 3, 48, 64, dtype=half),
        query_index=make(1, 3, 24, 128, dtype=half), weights=make(1, 3, 24, dtype=half),
        softmax_max=make(1, 1, 3, 48), softmax_sum=make(1, 1, 3, 48, low=1, high=2),
    )  # fmt: skip
    with on("A5"):
        found = torch_npu.npu_sparse_lightning_indexer_grad_kl_loss(**inputs(**pair))
        assert found[0].shape == (1, 3, 24, 128)
        message = "'query' must be of 48 heads beside 24 of 'query_index'"
        other = {n: pair[n] for n in ("query_index", "weights")}
        with pytest.raises(RuntimeError, match=message):
            torch_npu.npu_sparse_lightning_indexer_grad_kl_loss(**inputs(**other))


def test_a_sequence_of_more_queries_than_keys():
    half = torch.bfloat16
    given = dict(
        query=make(3, 32, 512, dtype=half), key=make(5, 1, 512, dtype=half), query_index=make(3, 8, 128, dtype=half),
        key_index=make(5, 1, 128, dtype=half), weights=make(3, 8, dtype=half),
        sparse_indices=torch.zeros(3, 1, 1024).int().npu(), softmax_max=make(1, 3, 32), softmax_sum=make(1, 3, 32),
        query_rope=make(3, 32, 64, dtype=half), key_rope=make(5, 1, 64, dtype=half), layout="TND",
        actual_seq_qlen=[2, 3], actual_seq_klen=[1, 5],
    )  # fmt: skip
    with pytest.raises(
        RuntimeError, match=r"'actual_seq_qlen' must be of sequences of at most \[1, 4\] tokens"
    ):
        torch_npu.npu_sparse_lightning_indexer_grad_kl_loss(**inputs(**given))
