"""npu_sparse_flash_attention_grad called by itself; its values are compared in the tests of the attention."""

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.support import make


def gradient_inputs(count=2, heads=4, depth=512, **change):
    half = torch.bfloat16
    places = torch.full((1, 2, 1, count), -1, dtype=torch.int32)
    places[..., :2] = torch.tensor([0, 3])
    given = dict(
        query=make(1, 2, heads, 512, dtype=half), key=make(1, 5, 1, 512, dtype=half),
        value=make(1, 5, 1, depth, dtype=half, seed=2), sparse_indices=places.npu(),
        d_out=make(1, 2, heads, depth, dtype=half, seed=3), out=make(1, 2, heads, depth, dtype=half, seed=4),
        softmax_max=make(1, 1, 2, heads, low=1, high=2), softmax_sum=make(1, 1, 2, heads, low=3, high=5),
        scale_value=0.1, sparse_block_size=1,
    )  # fmt: skip
    return given | change


def test_arguments_that_the_gradient_does_not_read():
    """attention_mode is 0 unless given; the forward takes 2 alone."""
    plain = torch_npu.npu_sparse_flash_attention_grad(**gradient_inputs())
    options = {"attention_mode": 2, "layout": None, "sparse_mode": None, "pre_tokens": 3}
    other = torch_npu.npu_sparse_flash_attention_grad(**gradient_inputs(**options))
    assert all(torch.equal(a, b) for a, b in zip(plain, other, strict=True))


def test_the_gradient_takes_smaller_values():
    found = torch_npu.npu_sparse_flash_attention_grad(**gradient_inputs(depth=128))
    assert found[2].shape == (1, 5, 1, 128) and found[2].any()


def test_the_gradient_on_ascend950():
    with on("A5"):
        message = "'sparse_indices' must be of a multiple of 1024 keys up to 8192"
        with pytest.raises(RuntimeError, match=message):
            torch_npu.npu_sparse_flash_attention_grad(**gradient_inputs())
        found = torch_npu.npu_sparse_flash_attention_grad(**gradient_inputs(count=1024, heads=6))
    assert found[0].any()


@pytest.mark.parametrize(
    "change,message",
    [
        ({"heads": 6}, "'query' must be of 1, 2, 4, .*128 heads"),
        ({"key": make(1, 5, 2, 512, dtype=torch.bfloat16)}, "'key' must be of 1 head of 512"),
        ({"depth": 640}, "'value' must be of a head size up to 512"),
        ({"query_rope": make(1, 2, 4, 64)}, "'query_rope' must be of the dtype of 'query'"),
        ({"sparse_mode": 1}, "'sparse_mode' must be 0 or 3"),
    ],
)
def test_refusals_of_the_gradient(change, message):
    with pytest.raises(RuntimeError, match=f"npu_sparse_flash_attention_grad: argument {message}"):
        torch_npu.npu_sparse_flash_attention_grad(**gradient_inputs(**change))
