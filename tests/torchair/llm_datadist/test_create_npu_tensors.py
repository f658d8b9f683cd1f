"""torchair.llm_datadist.create_npu_tensors: tensors on memory that somebody else owns."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from tests.distributed import job
from torch_npu.distributed.distributed_c10d import backend_of
from torchair.llm_datadist import create_npu_tensors


@pytest.mark.parametrize("device", [0, 1])
def test_tensors_on_addresses(device):
    owner = torch.zeros(2, 3, 4, dtype=torch.float16, device=f"npu:{device}")
    addresses = [owner[0].data_ptr(), owner[1].data_ptr()]
    first, second = create_npu_tensors([3, 4], torch.float16, addresses)
    assert (first.device.index, first.shape, first.dtype) == (device, (3, 4), torch.float16)
    assert [first.data_ptr(), second.data_ptr()] == addresses
    second.fill_(5)
    assert torch.equal(owner[1], torch.full_like(owner[1], 5)) and not owner[0].any()
    before = torch.npu.memory_allocated(device)
    del first, second
    assert torch.npu.memory_allocated(device) == before


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((4, torch.float16, [1]), TypeError, "shape: expected a list of int, received int"),
        (([4.0], torch.float16, [1]), TypeError, "shape: expected int, received float 4.0"),
        (([4], torch.float16, ["1"]), TypeError, "addresses: expected int, received str '1'"),
        (([4], "float16", [1]), TypeError, "dtype: expected a torch.dtype, received str"),
        (([4], torch.float8_e4m3fn, [1]), ValueError, "dtype: expected one of"),
        (([4], torch.float16, [1]), ValueError, "8 bytes of allocated device memory, received 0x1"),
    ],
)
def test_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        create_npu_tensors(*arguments)


def test_a_tensor_must_fit():
    owner = torch.empty(4, dtype=torch.int8, device="npu")
    with pytest.raises(ValueError, match="bytes of allocated device memory"):
        create_npu_tensors([1 << 40], torch.int8, [owner.data_ptr()])


def on_a_window(rank: int) -> list[int]:
    torch.npu.set_device(rank)
    backend = backend_of(dist.group.WORLD)
    backend._window_register_and_exchange(4096, [1 - rank])
    window = backend._get_window_mem()
    (made,) = create_npu_tensors([2, 3], torch.int32, [window.data_ptr() + 512])
    window.view(torch.int32)[128:134] = torch.arange(6, dtype=torch.int32, device="npu") + rank
    assert made.device == window.device and made.data_ptr() == window.data_ptr() + 512
    with pytest.raises(ValueError, match="4097 bytes of allocated device memory"):
        create_npu_tensors([4097], torch.int8, [window.data_ptr()])
    return made.flatten().tolist()


def test_windows_of_ranks():
    assert job.run(on_a_window, 2) == [[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6]]
