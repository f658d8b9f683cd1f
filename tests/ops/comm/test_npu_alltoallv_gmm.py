"""npu_alltoallv_gmm in a mirrored group: what it refuses. On ranks: test_moe_on_ranks."""

import pytest
import torch

import torch_npu
from tests.ops.comm.grouped_support import REFUSED, call
from tests.ops.support import make


def test_results_that_nobody_asked_for_are_none():
    results = torch_npu.npu_alltoallv_gmm(**call())
    assert results[0].shape == (16, 4) and all(r is None for r in results[1:])


@pytest.mark.family("A2")
@pytest.mark.parametrize("change,message", REFUSED)
def test_bad_input(change, message):
    with pytest.raises(
        (RuntimeError, NotImplementedError), match=f"npu_alltoallv_gmm: argument {message}"
    ):
        torch_npu.npu_alltoallv_gmm(**call(**change))


def test_forty_eight_experts_a_rank():
    counts = {n: [0] * 256 for n in ("send_counts", "recv_counts")}
    weight = make(49, 8, 4, dtype=torch.float16)
    with pytest.raises(
        RuntimeError, match="'gmm_weight' must be of 1 to 48 experts, but received 49"
    ):
        torch_npu.npu_alltoallv_gmm(**call(gmm_weight=weight, **counts))


def test_tokens_of_the_shared_expert():
    """A routed row for each of 2 to 8 experts of a token."""
    shared = {"mm_x": make(3, 8, dtype=torch.float16), "mm_weight": make(8, 4, dtype=torch.float16)}
    with pytest.raises(RuntimeError, match="'mm_x' must be of a half to an eighth of the 16 rows"):
        torch_npu.npu_alltoallv_gmm(**call(**shared))
