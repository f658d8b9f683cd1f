"""empty_with_swapped_memory: the device says npu, the device's memory knows nothing."""

import gc
import resource
from pathlib import Path

import pytest
import torch

import torch_npu
from tests.ops.families import as_chip


def test_the_page():
    swapped = torch_npu.empty_with_swapped_memory(
        [2, 2], dtype=torch.float32, device=torch.device("npu:0")
    )
    filled = swapped.fill_(3.14)
    out = torch.empty_like(swapped).fill_(1).mul_(filled)
    assert out.tolist() == torch.full((2, 2), 3.14).tolist() and out.device.type == "npu"


@pytest.mark.usefixtures("own_segments")
def test_device_memory_does_not_count_it():
    torch.npu.synchronize()
    before = torch.npu.memory_allocated(), torch.npu.memory_reserved(), torch.npu.mem_get_info()
    swapped = torch_npu.empty_with_swapped_memory([1 << 20], dtype=torch.float32)
    assert (
        torch.npu.memory_allocated(),
        torch.npu.memory_reserved(),
        torch.npu.mem_get_info(),
    ) == before
    swapped.zero_().add_(1)
    assert swapped.sum().item() == 1 << 20
    assert swapped.untyped_storage().nbytes() == 4 << 20
    # what operators make of it is device memory again
    assert torch.npu.memory_allocated() == before[0]
    plain = swapped.clone()
    assert torch.npu.memory_allocated() == before[0] + (4 << 20)
    del plain


def test_more_than_the_device_has_left():
    torch.npu.empty_cache()  # a limit is for new segments: a block of an earlier test would do
    torch.npu.set_per_process_memory_fraction(2**22 / torch.npu.mem_get_info()[1])
    try:
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(1 << 24, device="npu")
        assert torch_npu.empty_with_swapped_memory([1 << 24]).numel() == 1 << 24
    finally:
        torch.npu.set_per_process_memory_fraction(1.0)


def test_it_is_an_ordinary_tensor():
    x = torch_npu.empty_with_swapped_memory([3, 4]).normal_()
    host = x.cpu()
    assert torch.equal((x @ x.t()).cpu(), host @ host.t())
    x.requires_grad_()
    (x * 2).sum().backward()
    assert x.grad.tolist() == torch.full((3, 4), 2.0).tolist()
    grown = x.detach().resize_(50, 50).zero_()
    assert grown.shape == (50, 50) and grown.sum() == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8, torch.float64, None])
def test_options(dtype):
    x = torch_npu.empty_with_swapped_memory((2, 0, 3), dtype=dtype, device="npu:1")
    assert x.dtype == (dtype or torch.get_default_dtype()) and x.device == torch.device("npu:1")
    assert x.shape == (2, 0, 3) and torch_npu.get_npu_format(x) == 2
    assert torch_npu.empty_with_swapped_memory([]).shape == ()


def _resident() -> int:
    """Bytes of this process that lie in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_memory_goes_back():
    before = _resident()
    for _ in range(50):
        torch_npu.empty_with_swapped_memory([1 << 22]).zero_()  # 800 MiB if nothing went back
        gc.collect(0)
    assert _resident() - before < 400 * 2**20


def test_bad_arguments():
    with pytest.raises(RuntimeError, match="argument 'device' must be an NPU device.*cpu"):
        torch_npu.empty_with_swapped_memory([2], device="cpu")
    with pytest.raises(RuntimeError, match="argument 'size' must be of non-negative numbers"):
        torch_npu.empty_with_swapped_memory([-2])
    for soc in ("Ascend310P3", "Ascend910A", "Ascend950"):
        refused = pytest.raises(NotImplementedError, match=f"an Atlas A2 or A3 product.*{soc[:9]}")
        with as_chip(soc), refused:
            torch_npu.empty_with_swapped_memory([2])


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.float32, torch.int8, torch.int64, torch.bool]
)
def test_deterministic_mode_fills_it(dtype):
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        found = torch_npu.empty_with_swapped_memory([3], dtype=dtype, device="npu")
        want = torch.empty(3, dtype=dtype)  # PyTorch fills it on the CPU
    finally:
        torch.use_deterministic_algorithms(before)
    assert torch.allclose(found.cpu(), want, equal_nan=True)
    assert found.isnan().all() or found.eq(found[0]).all()
