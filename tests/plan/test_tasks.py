"""Tasks and the sizes of their tensors."""

import pytest

from softnpu.plan.tasks import Task, TensorSpec


@pytest.mark.parametrize(
    ("shape", "dtype", "nbytes"),
    [
        ((3, 4), "bfloat16", 24),
        ((), "float32", 4),
        ((0, 7), "int64", 0),
        ((5,), "int4", 3),
        ((2, 2), "float8_e4m3fn", 4),
    ],
)
def test_size_of_a_tensor(shape, dtype, nbytes):
    assert TensorSpec(shape, dtype).nbytes == nbytes


def test_unknown_dtype_is_named():
    with pytest.raises(ValueError, match="'float3'"):
        _ = TensorSpec((1,), "float3").nbytes


def test_attributes_by_name():
    task = Task("npu::f", "kernel", 0, 0, (), (), attributes=(("num_heads", 8),))
    assert task.attribute("num_heads") == 8
    assert task.attribute("sparse_mode", 0) == 0
