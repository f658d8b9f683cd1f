"""Capacity and laziness, the allocator's configuration and snapshot, pinned host memory."""

from __future__ import annotations

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
    resident,
    stat,
    take,
)
from tests.device.process import output

# --- capacity ---


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


def test_freed_memory_goes_back_to_the_host():
    before = resident()
    x = take(256 * MIB).fill_(1)
    assert resident() - before > 250 * MIB
    del x
    torch.npu.empty_cache()
    assert resident() - before < 16 * MIB


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


# --- configuration and snapshots ---


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


# --- pinned host memory ---


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
    torch.npu.synchronize()
    assert torch.equal(back, x)
    with pytest.raises(RuntimeError, match="[Oo]nly dense CPU tensors can be pinned|cannot pin"):
        moved.pin_memory()
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        torch.empty(5, device="npu", pin_memory=True)


@pytest.mark.parametrize(
    "factory,args",
    [
        (torch.zeros, (2, 3)),
        (torch.ones, (2, 3)),
        (torch.arange, (4,)),
        (torch.arange, (1, 4)),
        (torch.arange, (1, 9, 2)),
        (torch.linspace, (0, 1, 3)),
        (torch.eye, (2,)),
        (torch.eye, (2, 3)),
    ],
)
def test_factories_with_kernels_of_the_card_ignore_pin_memory(factory, args):
    made = factory(*args, device="npu", pin_memory=True)
    assert made.device.type == "npu" and torch.equal(made.cpu(), factory(*args))


def test_more_factories_ignore_pin_memory():
    assert torch.randperm(7, device="npu", pin_memory=True).sort()[0].tolist() == list(range(7))
    assert torch.ones_like(torch.zeros(3, device="npu"), pin_memory=True).tolist() == [1, 1, 1]
    assert torch.normal(0.0, 1.0, (5,), device="npu", pin_memory=True).device.type == "npu"
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        torch.rand(5, device="npu", pin_memory=True)


def test_pinned_memory_is_recycled():
    x = torch.empty(12345, pin_memory=True)
    at = x.data_ptr()
    del x
    assert torch.empty(12345, pin_memory=True).data_ptr() == at
