"""npu_moe_compute_expert_tokens against counting."""

import pytest
import torch

import torch_npu
from tests.ops.moe.loops import npu


@pytest.mark.parametrize(
    "rows,experts",
    [
        ([0, 1, 1, 1, 3], 4),
        ([2, 2, 5, 7, 7, 7], 8),
        ([4] * 9, 6),
        ([0], 1),
        ([], 4),
        ([0, 1, 3, 3, 4], 3),
        (sorted(i * 7 % 31 for i in range(302)), 31),
    ],
)
def test_counts(rows, experts):
    out = torch_npu.npu_moe_compute_expert_tokens(npu(rows), experts)
    assert out.dtype == torch.int32 and out.device.type == npu([0]).device.type
    assert out.tolist() == [sum(r <= e for r in rows) for e in range(experts)]


def test_non_contiguous():
    rows = npu([0, 9, 1, 9, 1, 9, 4, 9])[::2]
    assert torch_npu.npu_moe_compute_expert_tokens(rows, 5).tolist() == [1, 3, 3, 3, 4]


def test_unsorted_names_the_first_fall():
    with pytest.raises(
        RuntimeError,
        match="'sorted_expert_for_source_row' must be non-decreasing, but received 1 at",
    ):
        torch_npu.npu_moe_compute_expert_tokens(npu([0, 2, 1, 3, 2]), 4)


def test_negative_expert():
    with pytest.raises(RuntimeError, match="must be non-negative, but received -3 at index 0"):
        torch_npu.npu_moe_compute_expert_tokens(npu([-3, 2]), 4)


@pytest.mark.parametrize("experts", [0, 2049])
def test_bad_num_expert(experts):
    with pytest.raises(
        RuntimeError,
        match=rf"argument 'num_expert' must be within \[1, 2048\], but received {experts}",
    ):
        torch_npu.npu_moe_compute_expert_tokens(npu([0]), experts)


def test_bad_dtype():
    with pytest.raises(
        RuntimeError, match="'sorted_expert_for_source_row' must be of dtype torch.int32.*int64"
    ):
        torch_npu.npu_moe_compute_expert_tokens(npu([0], torch.int64), 2)
