"""npu_sparse_lightning_indexer_grad_kl_loss: refusals; its numbers are in the tests of the dense form."""

import pytest
import torch

import torch_npu
from tests.ops.support import make


def inputs(**change):
    half = torch.bfloat16
    given = dict(
        query=make(1, 3, 32, 512, dtype=half), key=make(1, 5, 1, 512, dtype=half),
        query_index=make(1, 3, 8, 128, dtype=half), key_index=make(1, 5, 1, 128, dtype=half),
        weights=make(1, 3, 8, dtype=half), sparse_indices=torch.zeros(1, 3, 1, 4).int().npu(),
        softmax_max=make(1, 1, 3, 32), softmax_sum=make(1, 1, 3, 32, low=1, high=2), scale_value=0.1,
    )  # fmt: skip
    return given | change


@pytest.mark.parametrize(
    "change,message",
    [
        ({"sparse_indices": torch.zeros(1, 3, 1, 4).long().npu()}, "'sparse_indices' must be of dtype torch.int32"),
        ({"query": make(1, 3, 16, 512, dtype=torch.bfloat16)}, "'query' must be of 32, 64 or 128 heads"),
        ({"key": make(1, 5, 1, 128, dtype=torch.bfloat16)}, r"'key' must be of shape \(1, 5, 1, 512\)"),
        ({"softmax_max": make(1, 3, 32)}, r"'softmax_max' must be of shape \(1, 1, 3, 32\)"),
        ({"query_rope": make(1, 3, 32, 64, dtype=torch.bfloat16)}, "'query_rope' must be given together"),
        ({"sinks": make(8)}, r"'sinks' must be of shape \(32\)"),
    ],
)  # fmt: skip
def test_refusals(change, message):
    with pytest.raises(RuntimeError, match=f"grad_kl_loss: argument {message}"):
        torch_npu.npu_sparse_lightning_indexer_grad_kl_loss(**inputs(**change))


def test_rows_without_keys():
    places = torch.full((1, 3, 1, 4), -1, dtype=torch.int32).npu()
    found = torch_npu.npu_sparse_lightning_indexer_grad_kl_loss(**inputs(sparse_indices=places))
    assert all(not t.any() for t in found)
