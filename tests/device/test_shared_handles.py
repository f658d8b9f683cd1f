"""Handles of shared npu tensors (`reduce_tensor`) whose values a program, or somebody else, has changed."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import reduce_tensor

import torch_npu  # noqa: F401

SIZE, STRIDE, OFFSET, DTYPE, HANDLE, BYTES = 1, 2, 3, 5, 7, 8


@pytest.fixture
def shared() -> Any:
    tensor = torch.arange(12.0, device="npu").view(3, 4)
    rebuild, parts = reduce_tensor(tensor)

    def changed(**values: Any) -> torch.Tensor:
        other = list(parts)
        for name, value in values.items():
            other[globals()[name]] = value
        return rebuild(*other)

    changed.tensor, changed.parts = tensor, parts  # type: ignore[attr-defined]
    return changed


def test_the_tensor_itself(shared):
    shared().add_(1)
    assert shared.tensor.sum().item() == 78


def test_a_view_inside(shared):
    part = shared(SIZE=(2, 2), STRIDE=(4, 1), OFFSET=6)
    assert part.tolist() == [[6.0, 7.0], [10.0, 11.0]]


@pytest.mark.parametrize(
    "values",
    [
        {"OFFSET": 1},
        {"SIZE": (4, 4)},
        {"STRIDE": (5, 1)},
        {"DTYPE": torch.float64},
        {"HANDLE": None},
        {"BYTES": 0},
        {"BYTES": 44},
        {"SIZE": (2**40, 2**40)},
        {"OFFSET": 2**64},
    ],
    ids=str,
)
def test_more_than_the_storage_has(shared, values):
    with pytest.raises(
        ValueError, match=r"^rebuild_npu_tensor: tensor_size .* need \d+ bytes, but the storage has"
    ):
        shared(**values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"SIZE": (-1, 4)}, "tensor_size must be numbers from 0 on"),
        ({"SIZE": None}, "tensor_size must be numbers from 0 on"),
        ({"SIZE": (1.5, 4)}, "tensor_size must be numbers from 0 on"),
        ({"STRIDE": (4,)}, "tensor_stride must have the 2 numbers"),
        ({"STRIDE": (-4, 1)}, "tensor_stride must be numbers from 0 on"),
        ({"OFFSET": -1}, "tensor_offset must be a number from 0 on"),
        ({"BYTES": -1}, "storage_size_bytes must be a number from 0 on"),
        ({"BYTES": "48"}, "storage_size_bytes must be a number from 0 on"),
        ({"BYTES": 2**40}, "expected 1099511627776 bytes, but handle"),
        ({"HANDLE": 2**45}, "is no handle of a shared npu storage"),
        ({"HANDLE": "text"}, "is no handle of a shared npu storage"),
        ({"HANDLE": b"1:" + b"9" * 5000}, "is no handle of a shared npu storage"),
    ],
    ids=str,
)
def test_no_such_value(shared, values, message):
    with pytest.raises(ValueError, match=f"^rebuild_npu_tensor: .*{message}"):
        shared(**values)


def test_a_dtype_that_is_none(shared):
    with pytest.raises(TypeError, match=r"rebuild_npu_tensor: dtype must be a torch\.dtype"):
        shared(DTYPE="float32")


def test_another_file_of_the_process(shared, tmp_path):
    """The number of its descriptor makes no tensor of a file that is no shared storage."""
    path = tmp_path / "notes"
    path.write_bytes(b"x" * 100)
    with path.open("r+b") as file, pytest.raises(ValueError, match="another file of its process"):
        shared(HANDLE=f"{os.getpid()}:{file.fileno()}".encode())
    assert path.read_bytes() == b"x" * 100


def test_a_pipe_of_the_process(shared):
    reading, writing = os.pipe()
    try:
        with pytest.raises(ValueError, match="another file of its process"):
            shared(HANDLE=f"{os.getpid()}:{reading}".encode())
    finally:
        os.close(reading)
        os.close(writing)


def test_a_descriptor_that_nobody_has(shared):
    with pytest.raises(RuntimeError, match="cannot be opened"):
        shared(HANDLE=f"{os.getpid()}:999999".encode())
