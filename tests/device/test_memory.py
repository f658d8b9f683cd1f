"""Device memory: rounding, caching, splits, statistics to the byte, kernels' outputs and temporaries."""

from __future__ import annotations

import gc

import pytest
import torch

import torch_npu  # noqa: F401
from softnpu import _C
from tests.device.arena import (
    DEVICE,
    GIB,
    MIB,
    allocated,
    clean,  # noqa: F401
    reserved,
    stat,
    take,
)


@pytest.mark.parametrize(
    ("size", "block", "segment"),
    [
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB + 5, 11 * MIB + 512, 12 * MIB),
    ],
)
def test_blocks_round_to_512_and_segments_as_on_cuda(size, block, segment):
    x = take(size)
    # A large block is not split where at most 1 MiB would remain.
    whole = segment if size > MIB and segment - block <= MIB else block
    assert allocated() == whole
    assert reserved() == segment
    assert stat("requested_bytes.all.current") == size
    del x
    assert allocated() == 0 and reserved() == segment


def test_nothing_is_allocated_for_nothing():
    x = take(0)
    assert allocated() == reserved() == 0 and x.data_ptr() == 0


def test_peak_statistics_by_hand():
    a = take(1000)  # 1024
    b = take(3 * MIB)  # a large segment
    del a
    c = take(600)  # 1024, in the block of a
    d = take(100)  # 512
    assert allocated() == 3 * MIB + 1024 + 512
    assert torch.npu.max_memory_allocated(DEVICE) == 3 * MIB + 1024 + 512
    del b
    e = take(5 * 512 + 1)  # 3072
    assert allocated() == 1024 + 512 + 3072
    assert torch.npu.max_memory_allocated(DEVICE) == 3 * MIB + 1024 + 512
    assert torch.npu.max_memory_reserved(DEVICE) == reserved() == 22 * MIB
    torch.npu.reset_peak_memory_stats(DEVICE)
    assert torch.npu.max_memory_allocated(DEVICE) == 1024 + 512 + 3072
    assert stat("requested_bytes.all.current") == 600 + 100 + 2561
    assert stat("allocation.all.current") == stat("active.all.current") == 3
    del c, d, e
    assert allocated() == 0 and torch.npu.max_memory_allocated(DEVICE) == 1024 + 512 + 3072


def test_peak_of_an_expression_by_hand():
    x = torch.ones(1000, device=f"npu:{DEVICE}")  # 4000 -> 4096
    torch.npu.reset_peak_memory_stats(DEVICE)
    y = (x * x + x).sqrt()
    # x, x * x and the sum live together; then the sum and its root
    assert torch.npu.max_memory_allocated(DEVICE) == 3 * 4096
    assert allocated() == 2 * 4096
    del x, y


def test_pools_are_counted_apart():
    small, large = take(700), take(2 * MIB)
    assert stat("allocated_bytes.small_pool.current") == 1024
    assert stat("allocated_bytes.large_pool.current") == 2 * MIB
    assert stat("reserved_bytes.small_pool.current") == 2 * MIB
    assert stat("reserved_bytes.large_pool.current") == 20 * MIB
    assert stat("segment.all.current") == 2
    del small, large


def test_accumulated_statistics():
    before = torch.npu.memory_stats(DEVICE)
    for _ in range(5):
        take(512)
    after = torch.npu.memory_stats(DEVICE)
    for name in ("allocation.all", "active.all"):
        assert after[f"{name}.allocated"] - before[f"{name}.allocated"] == 5
        assert after[f"{name}.freed"] - before[f"{name}.freed"] == 5
    assert after["allocated_bytes.all.freed"] - before["allocated_bytes.all.freed"] == 5 * 512


# --- caching and splits ---


def test_freed_blocks_are_reused():
    x = take(5 * MIB)
    at = x.data_ptr()
    del x
    count = stat("num_device_alloc")
    assert take(5 * MIB).data_ptr() == at
    assert stat("num_device_alloc") == count


def test_blocks_split_and_merge():
    blocks = [take(512) for _ in range(4)]
    addresses = [b.data_ptr() for b in blocks]
    assert [a - addresses[0] for a in addresses] == [0, 512, 1024, 1536]
    assert stat("inactive_split.all.current") == 1
    assert stat("inactive_split_bytes.all.current") == 2 * MIB - 2048
    del blocks[1]
    assert stat("inactive_split.all.current") == 2
    del blocks[1]  # its neighbor: the two merge
    assert stat("inactive_split.all.current") == 2
    assert take(1024).data_ptr() == addresses[1]
    blocks.clear()
    assert stat("inactive_split.all.current") == 0
    assert stat("inactive_split_bytes.all.current") == 0


def test_the_best_fitting_block_is_taken():
    keep = []
    sizes = (4096, 1024, 2048)
    holes = []
    for size in sizes:
        holes.append(take(size))
        keep.append(take(512))
    at = holes[2].data_ptr()
    holes.clear()
    assert take(1500).data_ptr() == at


def test_empty_cache_gives_whole_segments_back():
    x, y = take(3 * MIB), take(100)
    del x
    torch.npu.empty_cache()
    assert reserved() == 2 * MIB  # y's segment stays
    del y
    torch.npu.empty_cache()
    assert reserved() == 0


def test_streams_have_their_own_blocks():
    x = take(512)
    at = x.data_ptr()
    del x
    side = torch.npu.Stream(DEVICE)
    with torch.npu.stream(side):
        y = take(512)
        assert y.data_ptr() != at
    assert reserved() == 4 * MIB
    assert take(512).data_ptr() == at
    del y


def test_record_stream_accepts_another_stream_and_frees_in_the_end():
    side = torch.npu.Stream(DEVICE)
    x = take(4096)
    x.record_stream(side)
    del x
    assert allocated() == 0
    side.synchronize()
    torch.npu.synchronize(DEVICE)
    torch.npu.empty_cache()
    assert reserved() == 0 and stat("active_bytes.all.current") == 0


def test_erase_stream():
    side = torch.npu.Stream(DEVICE)
    x = take(4096)
    x.record_stream(side)
    _C.erase_stream(x, side.stream_id)
    at = x.data_ptr()
    del x
    assert take(4096).data_ptr() == at


def test_every_device_has_its_own_memory():
    x = take(MIB)
    assert torch.npu.memory_allocated(DEVICE) == MIB
    assert torch.npu.memory_allocated(DEVICE + 1) == 0
    del x


def test_mem_get_info_counts_reserved_bytes():
    assert torch.npu.mem_get_info(DEVICE) == (64 * GIB, 64 * GIB)
    x = take(100 * MIB)
    assert torch.npu.mem_get_info(DEVICE) == (64 * GIB - 100 * MIB, 64 * GIB)
    del x


# --- kernels' outputs and temporaries ---


def test_kernel_outputs_are_drawn_from_the_device():
    x = torch.ones(MIB, device=f"npu:{DEVICE}")
    y = x.sort()
    assert allocated() == 4 * MIB + 4 * MIB + 8 * MIB
    assert all(_C.host_view(t).data_ptr() == t.data_ptr() for t in y)
    del x, y
    assert allocated() == 0


def test_kernel_temporaries_are_counted_and_freed():
    x = torch.randn(256, 1024, device=f"npu:{DEVICE}").half()
    gc.collect()
    torch.npu.reset_peak_memory_stats(DEVICE)
    before = allocated()
    y = torch.logsumexp(x, 1)
    peak = torch.npu.max_memory_allocated(DEVICE) - before
    assert allocated() - before == 512  # 256 halves
    assert peak >= 256 * 1024 * 2  # x - max, at the least
    del y


def test_autograd_saved_tensors_are_counted():
    x = torch.ones(MIB, device=f"npu:{DEVICE}", requires_grad=True)
    y = x.exp().exp()
    held = allocated()
    assert held == 3 * 4 * MIB  # x, exp(x) for its backward, the result
    y.sum().backward()
    del y
    assert allocated() == 2 * 4 * MIB  # x and its gradient
    del x


def test_a_block_freed_last_serves_the_next_request_of_its_size():
    a, b = (torch.empty(1024, device="npu") for _ in range(2))
    places = {a.data_ptr(), b.data_ptr()}
    del a, b
    again = [torch.empty(1024, device="npu") for _ in range(2)]
    assert {t.data_ptr() for t in again} == places


@pytest.mark.usefixtures("own_segments")
def test_a_freed_block_counts_as_free_and_joins_its_neighbors():
    torch.npu.empty_cache()
    parts = [torch.empty(1 << 16, device="npu") for _ in range(4)]  # side by side in a new segment
    first, length = parts[0].data_ptr(), parts[0].nbytes
    assert [p.data_ptr() for p in parts] == [first + i * length for i in range(4)]
    held = torch.npu.memory_stats()["active_bytes.all.current"]
    del parts
    assert torch.npu.memory_stats()["active_bytes.all.current"] == held - 4 * length
    whole = torch.empty(4 * length, dtype=torch.uint8, device="npu")
    assert whole.data_ptr() == first
