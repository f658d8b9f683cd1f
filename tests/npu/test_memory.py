"""torch.npu.memory: statistics, limits, raw allocations, pinned memory."""

import pytest
import torch

import torch_npu

MIB = 2**20


@pytest.fixture(autouse=True)
def empty():
    torch.npu.init()
    torch.npu.empty_cache()
    torch.npu.reset_peak_memory_stats()
    yield
    torch.npu.set_per_process_memory_fraction(1.0)


@pytest.mark.usefixtures("own_segments")
def test_statistics_follow_tensors():
    before = torch.npu.memory_allocated()
    x = torch.empty(3 * MIB, dtype=torch.uint8, device="npu")
    assert torch.npu.memory_allocated() - before == 3 * MIB
    del x
    assert torch.npu.memory_allocated() == before
    assert torch.npu.max_memory_allocated() == before + 3 * MIB
    assert torch.npu.memory_reserved() >= 3 * MIB


def test_an_emptied_cache_holds_nothing_that_is_free():
    own = torch.empty(
        64 * MIB, dtype=torch.uint8, device="npu"
    )  # in a segment that nothing else is in
    del own
    torch.npu.empty_cache()
    assert torch.npu.memory_reserved() <= torch.npu.max_memory_reserved() - 64 * MIB


def test_flat_and_nested_statistics_have_cudas_keys():
    torch.ones(1, device="npu")
    nested, flat = torch.npu.memory_stats_as_nested_dict(), torch.npu.memory_stats()
    assert list(flat) == sorted(flat)
    for group in ("allocation", "segment", "active", "inactive_split", "allocated_bytes",
                  "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes"):  # fmt: skip
        for pool in ("all", "small_pool", "large_pool"):
            for kind in ("current", "peak", "allocated", "freed"):
                assert flat[f"{group}.{pool}.{kind}"] == nested[group][pool][kind]
    for key in ("num_alloc_retries", "num_ooms", "oversize_segments.current", "max_split_size"):
        assert key in flat


def test_resets():
    torch.ones(MIB, device="npu")
    torch.npu.reset_peak_memory_stats()
    assert torch.npu.max_memory_allocated() == torch.npu.memory_allocated()
    assert torch.npu.memory_stats()["allocation.all.allocated"] > 0
    torch.npu.reset_accumulated_memory_stats()
    assert torch.npu.memory_stats()["allocation.all.allocated"] == 0


@pytest.mark.parametrize(
    "old, new",
    [("memory_cached", "memory_reserved"), ("max_memory_cached", "max_memory_reserved")],
)
def test_old_names_warn_and_agree(old, new):
    with pytest.warns(FutureWarning, match=new):
        assert getattr(torch.npu, old)() == getattr(torch.npu, new)()


@pytest.mark.parametrize("name", ["reset_max_memory_allocated", "reset_max_memory_cached"])
def test_old_resets_warn_and_reset(name):
    torch.ones(MIB, device="npu")
    with pytest.warns(FutureWarning, match="reset_peak_memory_stats"):
        getattr(torch.npu, name)()
    assert torch.npu.max_memory_allocated() == torch.npu.memory_allocated()


def test_fraction_limits_the_process():
    total = torch.npu.mem_get_info()[1]
    torch.npu.set_per_process_memory_fraction(0.001)
    assert torch.npu.get_per_process_memory_fraction() == 0.001
    with pytest.raises(torch.OutOfMemoryError, match="NPU out of memory"):
        torch.empty(total // 500, dtype=torch.uint8, device="npu")
    torch.npu.set_per_process_memory_fraction(1.0)
    torch.empty(total // 500, dtype=torch.uint8, device="npu")


def test_fraction_refuses():
    with pytest.raises(TypeError, match="must be `float`"):
        torch.npu.set_per_process_memory_fraction(1)
    with pytest.raises(ValueError, match="Invalid fraction value: 1.5"):
        torch.npu.set_per_process_memory_fraction(1.5)
    with pytest.raises(RuntimeError, match="invalid NPU device index 9"):
        torch.npu.set_per_process_memory_fraction(0.5, 9)


def test_raw_allocations():
    before = torch.npu.memory_allocated()
    address = torch.npu.caching_allocator_alloc(1000, stream=torch.npu.Stream())
    assert torch.npu.memory_allocated() - before == 1024
    torch.npu.caching_allocator_delete(address)
    assert torch.npu.memory_allocated() == before
    with pytest.raises(RuntimeError, match="invalid device pointer"):
        torch.npu.caching_allocator_delete(address)
    with pytest.raises(TypeError, match="Invalid type for stream argument"):
        torch.npu.caching_allocator_alloc(8, stream="main")
    with pytest.raises(TypeError, match="number of bytes"):
        torch.npu.caching_allocator_alloc(-8)


@pytest.mark.usefixtures("own_segments")
def test_mem_get_info_counts_what_is_reserved():
    free, total = torch.npu.mem_get_info()
    x = torch.empty(64 * MIB, dtype=torch.uint8, device="npu")
    assert free - torch.npu.mem_get_info()[0] == 64 * MIB
    assert total == 64 * 2**30
    del x


def test_summary_is_a_table():
    x = torch.empty(3 * MIB, dtype=torch.uint8, device="npu:1")
    lines = torch.npu.memory_summary("npu:1").splitlines()
    assert {len(line) for line in lines} == {77}
    assert "device ID 1" in lines[1]
    row = next(line for line in lines if "Allocated memory" in line)
    assert row.split("|")[2].split() == ["3072", "KiB"]
    assert sum("from large pool" in line for line in lines) == 9
    short = torch.npu.memory_summary("npu:1", abbreviated=True)
    assert "from large pool" not in short and "Allocated memory" in short
    del x


def test_pinned_memory_statistics():
    torch.npu.host_empty_cache()
    torch.npu.reset_peak_host_memory_stats()
    before = torch.npu.host_memory_stats()["active_bytes.current"]
    x = torch.empty(MIB, dtype=torch.uint8).pin_memory()
    stats = torch.npu.host_memory_stats()
    assert stats["active_bytes.current"] - before == MIB
    assert stats["allocated_bytes.current"] >= MIB
    del x
    assert torch.npu.host_memory_stats()["active_bytes.current"] == before
    held = torch.npu.host_memory_stats_as_nested_dict()["allocated_bytes"]["current"]
    torch.npu.host_empty_cache()
    assert torch.npu.host_memory_stats()["allocated_bytes.current"] == held - MIB
    torch.npu.reset_accumulated_host_memory_stats()
    assert torch.npu.host_memory_stats()["num_host_alloc"] == 0
    torch.npu.reset_peak_host_memory_stats()
    assert torch.npu.host_memory_stats()["active_bytes.peak"] == before


def test_empty_virt_addr_cache_needs_expandable_segments():
    with pytest.raises(RuntimeError, match="expandable_segments:True"):
        torch.npu.empty_virt_addr_cache()
    torch.npu.empty_cache()
    before = torch.npu.memory_reserved()
    torch.npu._set_allocator_settings("expandable_segments:True")
    try:
        torch.empty(64 * MIB, dtype=torch.uint8, device="npu")
        torch.npu.empty_virt_addr_cache()
        assert torch.npu.memory_reserved() < before + 64 * MIB
    finally:
        torch.npu._set_allocator_settings("expandable_segments:False")


@pytest.mark.parametrize("name", ["memory_stats", "memory_summary", "reset_peak_memory_stats"])
def test_wrong_devices(name):
    with pytest.raises(RuntimeError, match="invalid NPU device index 64.*Invalid device argument"):
        getattr(torch_npu.npu, name)(64)
    with pytest.raises(ValueError, match="Expected a npu device"):
        getattr(torch_npu.npu, name)("cuda:0")


def test_head_of_the_summary():
    torch.npu.reset_accumulated_memory_stats()
    rows = torch.npu.memory_summary().splitlines()
    assert rows[1] == "|" + "PyTorch NPU memory summary, device ID 0".center(75) + "|"
    assert rows[3] == (
        "|            NPU OOMs: 0             |        npuMalloc retries: 0          |"
    )


@pytest.mark.usefixtures("own_segments")
def test_snapshots_are_read_by_pytorch():
    from torch_npu.npu import _memory_viz

    kept = torch.ones(2**20, device="npu")
    text = _memory_viz.segsum(torch.npu.memory._snapshot())
    assert "20.0MiB allocated, 16.0MiB (0.0% internal) free" in text
    del kept
