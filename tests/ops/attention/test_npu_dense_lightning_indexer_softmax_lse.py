"""npu_dense_lightning_indexer_softmax_lse by hand; random inputs are in the tests of the loss."""

import torch

import torch_npu


def test_by_hand():
    """One key of ones and one of minus ones: scores 128 and 0 for a query of ones, of which weights make 256 and 0."""
    query = torch.ones(1, 2, 8, 128, dtype=torch.float16).npu()
    key = torch.stack((torch.ones(128), -torch.ones(128))).half().view(1, 2, 1, 128).npu()
    weights = torch.full((1, 2, 8), 0.25).npu()
    tops, sums = torch_npu.npu_dense_lightning_indexer_softmax_lse(query, key, weights)
    assert tops.tolist() == [[[256.0, 256.0]]]
    assert sums.tolist() == [[[1.0, 1.0]]]
    tops, sums = torch_npu.npu_dense_lightning_indexer_softmax_lse(query, key * 0, weights)
    assert (tops.tolist(), sums.tolist()) == ([[[0.0, 0.0]]], [[[1.0, 2.0]]])


def test_none_stands_for_the_defaults():
    query = torch.ones(1, 2, 8, 128, dtype=torch.float16).npu()
    weights = torch.full((1, 2, 8), 0.25).npu()
    call = torch_npu.npu_dense_lightning_indexer_softmax_lse
    options = {"layout": None, "sparse_mode": None, "pre_tokens": None, "next_tokens": None}
    for mine, right in zip(
        call(query, query[:, :, :1], weights, **options),
        call(query, query[:, :, :1], weights),
        strict=True,
    ):
        assert torch.equal(mine, right)
