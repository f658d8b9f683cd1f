"""npu_quant_gmm_alltoallv: what it refuses. Its values: test_npu_alltoallv_quant_gmm."""

import pytest
import torch

import torch_npu
from tests.ops.comm.test_npu_alltoallv_quant_gmm import NAME, hifloat, options
from tests.ops.support import make


@pytest.mark.parametrize(
    "changes,message",
    [
        ({"comm_quant_mode": 1}, "'comm_quant_mode' must be None or 0, but received 1"),
        ({"comm_quant_scale": True}, "'comm_quant_scale' must be left at None"),
        ({"comm_quant_dtype": 1}, "'comm_quant_dtype' must be left at None"),
        ({"mm_x": True}, "'mm_weight' must be given with mm_x"),
    ],
)
def test_refusals(changes, message):
    changes = {k: make(1) if v is True else v for k, v in changes.items()}
    given = (hifloat(8, 6), hifloat(2, 6, 4), make(1), make(1), NAME, 2, [2] * 4, [2] * 4, 15)
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_quant_gmm_alltoallv(*given, **{**options(1), **changes})


def test_one_scale_a_matrix_where_no_mode_is_given():
    given = (hifloat(8, 6), hifloat(2, 6, 4), make(1), make(1), NAME, 2, [2] * 4, [2] * 4, 15)
    named = torch_npu.npu_quant_gmm_alltoallv(*given, **options(1))[0]
    silent = {k: v for k, v in options(1).items() if "quant_mode" not in k}
    assert torch.equal(named.cpu(), torch_npu.npu_quant_gmm_alltoallv(*given, **silent)[0].cpu())


@pytest.mark.parametrize(
    "place,value,message",
    [
        (
            0,
            (8, 6, 1),
            r"'gmm_x' must be a tensor of 2 dimensions.*dimension of gmm_x should be 2D",
        ),
        (1, (6, 4), r"'gmm_weight' must be a tensor of 3 dimensions.*should be 3D"),
        (4, "nobody", "'hcom' must be the name of a group"),
    ],
)
def test_shapes_are_looked_at_before_the_group(place, value, message):
    given = [hifloat(8, 6), hifloat(2, 6, 4), make(1), make(1), "nobody", 2, [2] * 4, [2] * 4, 15]
    given[place] = value if isinstance(value, str) else hifloat(*value)
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_quant_gmm_alltoallv(*given, **options(1))
