"""Device memory: caching, splits, statistics to the byte, capacity, laziness, statistics of kernels."""

from __future__ import annotations

import gc
import os

import pytest
import torch

import torch_npu  # noqa: F401
from softnpu import _C
from tests.device.process import output

KIB, MIB, GIB = 2**10, 2**20, 2**30
DEVICE = (
    6  # a device that no other test allocates on, so that every figure can be worked out by hand
)


@pytest.fixture(autouse=True)
def clean():
    gc.collect()
    torch.npu.empty_cache()
    torch.npu.reset_peak_memory_stats(DEVICE)
    assert torch.npu.memory_allocated(DEVICE) == 0
    assert torch.npu.memory_reserved(DEVICE) == 0
    yield
    gc.collect()
    torch.npu.empty_cache()


def take(size):
    return torch.empty(size, dtype=torch.uint8, device=f"npu:{DEVICE}")


def stat(name):
    return torch.npu.memory_stats(DEVICE)[name]


def allocated():
    return torch.npu.memory_allocated(DEVICE)


def reserved():
    return torch.npu.memory_reserved(DEVICE)


# --- rounding and peaks by hand ---------------------------------------------------------------------


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


# --- caching and splits -----------------------------------------------------------------------------


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
    del blocks[1]  # its neighbour: the two merge
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


# --- capacity ----------------------------------------------------------------------------------------


def resident():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_60_gib_cost_no_resident_memory():
    before = resident()
    x = take(60 * GIB)
    assert resident() - before < 16 * MIB
    assert allocated() == 60 * GIB
    x[30 * GIB : 30 * GIB + 4096] = 7  # only what is touched costs
    assert x[30 * GIB + 4095].item() == 7 and x[59 * GIB].item() == 0
    assert resident() - before < 24 * MIB
    del x
    torch.npu.empty_cache()
    assert reserved() == 0


def test_65_gib_raise_and_the_device_still_works():
    kept = take(300 * MIB)
    ooms = stat("num_ooms")
    with pytest.raises(torch.OutOfMemoryError) as error:
        take(65 * GIB)
    message = str(error.value)
    assert message.startswith("NPU out of memory. Tried to allocate 65.00 GiB")
    for part in (
        f"NPU {DEVICE}",
        "64.00 GiB total capacity",
        "300.00 MiB already allocated",
        "63.71 GiB free",
        "300.00 MiB reserved in total by PyTorch",
    ):
        assert part in message
    assert stat("num_ooms") == ooms + 1
    assert allocated() == 300 * MIB
    kept.fill_(3)
    assert (kept[:10] * 2).tolist() == [6] * 10
    del kept


def test_out_of_memory_is_a_runtime_error_as_on_cuda():
    assert issubclass(torch.OutOfMemoryError, RuntimeError)
    with pytest.raises(RuntimeError, match="out of memory"):
        take(100 * GIB)


def test_cached_memory_is_given_back_before_out_of_memory():
    take(40 * GIB)
    assert reserved() == 40 * GIB
    retries = stat("num_alloc_retries")
    x = take(50 * GIB)
    assert reserved() == 50 * GIB and stat("num_alloc_retries") == retries + 1
    del x


def test_a_kernel_that_runs_out_of_memory_raises_and_gives_everything_back():
    x = take(20 * GIB)
    before = allocated()
    with pytest.raises(torch.OutOfMemoryError, match="NPU out of memory"):
        x.repeat(3)
    with pytest.raises(torch.OutOfMemoryError, match="NPU out of memory"):
        torch.cat([x, x, x])
    with pytest.raises(torch.OutOfMemoryError, match="NPU out of memory"):
        x.resize_(70 * GIB)
    assert allocated() == before and x.numel() == 20 * GIB
    del x
    assert (torch.ones(3, device=f"npu:{DEVICE}") + 1).tolist() == [2, 2, 2]


def test_fraction_limits_the_process():
    torch.npu.set_per_process_memory_fraction(0.25, DEVICE)
    try:
        x = take(15 * GIB)
        with pytest.raises(torch.OutOfMemoryError, match="16.00 GiB allowed"):
            take(2 * GIB)
        del x
    finally:
        torch.npu.set_per_process_memory_fraction(1.0, DEVICE)
    del_me = take(20 * GIB)
    assert allocated() == 20 * GIB
    del del_me


def test_fraction_refuses_bad_values():
    with pytest.raises(TypeError, match="must be `float`"):
        torch.npu.set_per_process_memory_fraction(1, DEVICE)
    for wrong in (-0.1, 1.5):
        with pytest.raises(ValueError, match=f"Invalid fraction value: {wrong}"):
            torch.npu.set_per_process_memory_fraction(wrong, DEVICE)


# --- kernels' outputs and temporaries -------------------------------------------------------------


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


# --- configuration and snapshots ------------------------------------------------------------------


def test_expandable_segments_grow_in_one_piece():
    _C.configure_allocator({"expandable_segments": True})
    try:
        blocks = [take(30 * MIB) for _ in range(3)]
        assert stat("segment.all.current") == 1
        assert [b.data_ptr() - blocks[0].data_ptr() for b in blocks] == [0, 30 * MIB, 60 * MIB]
        del blocks
        torch.npu.empty_cache()
        assert reserved() == 0
    finally:
        _C.configure_allocator({})


def test_max_split_size_keeps_large_blocks_whole():
    _C.configure_allocator({"max_split_size": 32 * MIB})
    try:
        take(64 * MIB)
        x = take(12 * MIB)  # does not cut the cached 64 MiB
        assert reserved() == 76 * MIB
        del x
    finally:
        _C.configure_allocator({})


def test_garbage_collection_releases_old_blocks():
    torch.npu.set_per_process_memory_fraction(1 / 64, DEVICE)  # 1 GiB
    _C.configure_allocator({"garbage_collection_threshold": 0.5})
    try:
        take(600 * MIB)
        assert reserved() == 600 * MIB
        x = take(700 * MIB)
        assert reserved() == 700 * MIB
        del x
    finally:
        _C.configure_allocator({})
        torch.npu.set_per_process_memory_fraction(1.0, DEVICE)


def test_segments_describe_every_block():
    x, y = take(600), take(2 * MIB)
    segments = _C.memory_segments(DEVICE)
    assert sorted(s["segment_type"] for s in segments) == ["large", "small"]
    for segment in segments:
        assert sum(b["size"] for b in segment["blocks"]) == segment["total_size"]
    states = [b["state"] for s in segments for b in s["blocks"]]
    assert states.count("active_allocated") == 2
    addresses = {b["address"]: b["requested_size"] for s in segments for b in s["blocks"]}
    assert addresses[x.data_ptr()] == 600 and addresses[y.data_ptr()] == 2 * MIB


def test_the_memory_setting_is_the_capacity():
    printed = output(
        """
        import torch, torch_npu
        x = torch.empty(400 * 2**20, dtype=torch.uint8, device="npu")
        try:
            torch.empty(200 * 2**20, dtype=torch.uint8, device="npu")
        except torch.OutOfMemoryError as error:
            print("512.00 MiB total capacity" in str(error))
        print((x[:3].fill_(1) + 1).tolist())
        """,
        SOFTNPU_MEMORY="512MiB",
    )
    assert printed.split("\n") == ["True", "[2, 2, 2]"]


# --- pinned host memory ---------------------------------------------------------------------------


def test_pinned_memory():
    x = torch.arange(10.0).pin_memory()
    assert x.is_pinned() and not torch.ones(3).is_pinned()
    assert x.device.type == "cpu" and x.tolist() == list(range(10))
    assert x[3:].is_pinned() and x.pin_memory() is x
    made = torch.empty(5, pin_memory=True)
    assert made.is_pinned()
    moved = x.to("npu", non_blocking=True)
    assert torch.equal(moved.cpu(), x)
    back = torch.empty(10, pin_memory=True)
    back.copy_(moved, non_blocking=True)
    assert torch.equal(back, x)
    with pytest.raises(RuntimeError, match="[Oo]nly dense CPU tensors can be pinned|cannot pin"):
        moved.pin_memory()
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        torch.empty(5, device="npu", pin_memory=True)


def test_pinned_memory_is_recycled():
    x = torch.empty(12345, pin_memory=True)
    at = x.data_ptr()
    del x
    assert torch.empty(12345, pin_memory=True).data_ptr() == at
