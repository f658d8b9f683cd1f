"""npu_gmm_alltoallv in a mirrored group: what it refuses. On ranks: test_moe_on_ranks."""

import pytest

import torch_npu
from tests.ops.comm.grouped_support import REFUSED, call


def test_results_that_nobody_asked_for_are_none():
    results = torch_npu.npu_gmm_alltoallv(**call())
    assert results[0].shape == (16, 4) and all(r is None for r in results[1:])


@pytest.mark.parametrize("change,message", REFUSED)
def test_bad_input(change, message):
    with pytest.raises(
        (RuntimeError, NotImplementedError), match=f"npu_gmm_alltoallv: argument {message}"
    ):
        torch_npu.npu_gmm_alltoallv(**call(**change))
