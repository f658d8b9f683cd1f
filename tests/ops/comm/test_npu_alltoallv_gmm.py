"""npu_alltoallv_gmm in a mirrored group: what it refuses. On ranks: test_moe_on_ranks."""

import pytest

import torch_npu
from tests.ops.comm.grouped_support import REFUSED, call


def test_results_that_nobody_asked_for_are_none():
    results = torch_npu.npu_alltoallv_gmm(**call())
    assert results[0].shape == (16, 4) and all(r is None for r in results[1:])


@pytest.mark.parametrize("change,message", REFUSED)
def test_bad_input(change, message):
    with pytest.raises(
        (RuntimeError, NotImplementedError), match=f"npu_alltoallv_gmm: argument {message}"
    ):
        torch_npu.npu_alltoallv_gmm(**call(**change))
