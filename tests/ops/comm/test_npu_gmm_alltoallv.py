"""npu_gmm_alltoallv in a mirrored group: what it refuses. On ranks: test_moe_on_ranks."""

import pytest
import torch

import torch_npu
from tests.ops.support import make

NAME = "softnpu%mirror_8"
COUNTS = [1] * 16


def operands(dtype=torch.float16):
    return make(16, 8, dtype=dtype), make(2, 8, 4, dtype=dtype)


def test_results_that_nobody_asked_for_are_none():
    results = torch_npu.npu_gmm_alltoallv(*operands(), NAME, 8, COUNTS, COUNTS)
    assert results[0].shape == (16, 4) and all(r is None for r in results[1:])


@pytest.mark.parametrize(
    "change,message",
    [
        ({"ep_world_size": 4}, "'ep_world_size' must be 8, 16, 32, 64 or 128, but received 4"),
        ({"hcom": ""}, "'hcom' must be a name of 1 to 127 characters"),
        (
            {"send_counts": [1] * 8},
            r"'send_counts' must be of e \* ep_world_size = 16 counts, but received 8",
        ),
        ({"recv_counts": [-1] + [1] * 15}, r"'recv_counts' must be counts in \[0, 52428800\]"),
        (
            {"send_counts": [2] * 16},
            r"'send_counts' must be counts that add up to the rows of gmm_x \(16\)",
        ),
        ({"comm_mode": "x"}, "'comm_mode' must be"),
        ({"mm_x": "half"}, "'mm_weight' must be given with mm_x"),
        ({"send_counts_tensor": "int"}, "'send_counts_tensor' must be left at None"),
        ({"trans_gmm_weight": True}, "'gmm_weight' must be of H1 = 8, but received 4"),
    ],
)
def test_bad_input(change, message):
    x, w = operands()
    given = {
        "hcom": NAME,
        "ep_world_size": 8,
        "send_counts": COUNTS,
        "recv_counts": COUNTS,
        **change,
    }
    if given.get("mm_x"):
        given["mm_x"] = make(3, 6, dtype=torch.float16)
    if given.get("send_counts_tensor"):
        given["send_counts_tensor"] = make(16, dtype=torch.int32, high=2)
    with pytest.raises(
        (RuntimeError, NotImplementedError), match=f"npu_gmm_alltoallv: argument {message}"
    ):
        torch_npu.npu_gmm_alltoallv(x, w, **given)
