"""References for Triton kernels of vllm-ascend against these kernels, interpreted."""

from __future__ import annotations

import os

import pytest
import torch

import torch_npu  # noqa: F401

if not os.environ.get("CLIENT_VLLM_ASCEND"):
    pytest.skip(
        "CLIENT_VLLM_ASCEND does not name a checkout of vllm-ascend", allow_module_level=True
    )

from vllm_ascend.ops.triton import compute_slot_mapping, rope, triton_utils

from softnpu.contrib.vllm_ascend import triton_kernels  # noqa: F401
from softnpu.triton import references


@pytest.fixture(params=["interpreted", "reference"])
def way(request, monkeypatch):
    """The interpreter's way forgets the references."""
    triton_utils.init_device_properties_triton()
    if request.param == "interpreted":
        monkeypatch.setattr(references, "_references", {})
    monkeypatch.setattr(references, "_found", {})
    return request.param


def used(kernel) -> bool:
    """Whether a reference was found for a kernel that was launched."""
    name = kernel.fn.__name__
    return any(f is not None for k, f in references._found.items() if k.__name__ == name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("halves", [True, False])
@pytest.mark.parametrize("table", [True, False])
def test_rope(way, dtype, halves, table):
    torch.manual_seed(0)
    q, k = torch.randn(5, 4, 32).to(dtype), torch.randn(5, 2, 32).to(dtype)
    cache, positions = torch.randn(9, 16).to(dtype), torch.tensor([3, 0, 8, 1, 1])
    angles = {"cos_sin_cache": cache.npu(), "positions": positions.npu()}
    if not table:
        angles = {"cos": cache[positions, :8].npu(), "sin": cache[positions, 8:].npu()}
    found = rope.rope_forward_triton(q.npu(), k.npu(), rope_dim=16, is_neox_style=halves, **angles)
    assert used(rope._triton_rope) == (way == "reference")
    cos, sin = (p.double().unsqueeze(1) for p in cache[positions].chunk(2, -1))
    for x, got in zip((q, k), found):
        wide = x.double().clone()
        part = wide[..., :16]
        one, two = part.chunk(2, -1) if halves else (part[..., 0::2], part[..., 1::2])
        first, second = one * cos - two * sin, two * cos + one * sin
        joined = (
            torch.cat((first, second), -1)
            if halves
            else torch.stack((first, second), -1).flatten(-2)
        )
        expected = torch.cat((joined, wide[..., 16:]), -1)
        tolerance = 1e-5 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(got.cpu().double(), expected, atol=tolerance, rtol=tolerance)


def test_slot_mapping(way):
    table = torch.arange(24).view(3, 8).flip(1).contiguous().int()
    starts, positions = torch.tensor([0, 3, 3, 9]).int(), torch.tensor([5, 6, 7, *range(11, 17)])
    slots = torch.full((16,), 77, dtype=torch.int32).npu()
    compute_slot_mapping._compute_slot_mapping_kernel[(4,)](
        9, 16, starts.npu(), positions.npu(), table.npu(), 8, 4, slots, KV_CACHE_BLOCK_SIZE=4,
        BLOCKS_PER_KV_BLOCK=1, TOTAL_CP_WORLD_SIZE=1, TOTAL_CP_RANK=0, CP_KV_CACHE_INTERLEAVE_SIZE=1,
        PAD_ID=-1, TILE_BLOCK_SIZE=16, BLOCK_TABLE_WINDOW_SIZE=8,
    )  # fmt: skip
    assert used(compute_slot_mapping._compute_slot_mapping_kernel) == (way == "reference")
    owner = [0] * 3 + [2] * 6
    expected = [int(table[o, p // 4]) * 4 + p % 4 for o, p in zip(owner, positions.tolist())]
    assert slots.cpu().tolist() == expected + [-1] * 7
