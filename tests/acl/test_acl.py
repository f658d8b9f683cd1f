"""acl (pyACL): devices, memory, streams and events by handles and codes."""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import acl
import torch_npu  # noqa: F401
from softnpu import chips

H2D, D2H, D2D = 1, 2, 3
WILD = 0x10


def test_init_and_finalize_in_a_process_of_their_own():
    program = (
        "import acl; print(acl.rt.get_device()[1], acl.finalize(), acl.init(), acl.init(), "
        "acl.rt.malloc(8, 0), acl.rt.get_context(), acl.rt.set_device(0), acl.rt.malloc(8, 0)[1], acl.finalize(), "
        "acl.finalize())"
    )
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert (
        out.stdout.split("\n")[0] == "107002 100001 0 100002 (0, 107002) (0, 107002) 0 0 0 100037"
    )


def test_init_after_torch_has_started():
    torch.ones(1, device="npu")
    assert acl.init() == 100002
    assert acl.init("/no/such/file.json") == 100000
    with pytest.raises(TypeError, match="config_path must be a str, received int"):
        acl.init(3)


def test_names():
    assert acl.get_soc_name() == chips.current().name
    assert acl.get_version() == acl.rt.get_version() == (1, 0, 0, 0)
    assert acl.rt.get_run_mode() == (1, 0)


def test_devices():
    assert acl.rt.get_device_count() == (torch.npu.device_count(), 0)
    assert acl.rt.set_device(1) == 0 and torch.npu.current_device() == 1
    assert acl.rt.get_device() == (1, 0)
    assert acl.rt.set_device(99) == 107001 and acl.rt.reset_device(-1) == 107001
    assert acl.rt.device_can_access_peer(0, 1) == (1, 0)
    assert acl.rt.device_can_access_peer(0, 99) == (0, 107001)
    with pytest.raises(
        TypeError, match="acl.rt.set_device: device_id must be an int, received str"
    ):
        acl.rt.set_device("0")


def test_contexts():
    first, code = acl.rt.get_context()
    assert code == 0
    second, code = acl.rt.create_context(1)
    assert code == 0 and acl.rt.get_device() == (1, 0) and acl.rt.get_context() == (second, 0)
    assert acl.rt.set_context(first) == 0 and acl.rt.get_device() == (0, 0)
    assert acl.rt.destroy_context(second) == 0
    assert acl.rt.destroy_context(second) == 107002 and acl.rt.set_context(second) == 107002
    assert acl.rt.create_context(99) == (0, 107001)


def test_memory_is_the_device_s():
    free, total, code = acl.rt.get_mem_info(1)
    assert code == 0 and total == torch.npu.mem_get_info()[1]
    before = torch.npu.memory_allocated()
    address, code = acl.rt.malloc(1 << 20, 0)
    assert code == 0 and torch.npu.memory_allocated() - before == 1 << 20
    assert acl.rt.free(address) == 0 and torch.npu.memory_allocated() == before
    assert acl.rt.free(address) == 207002 and acl.rt.free(0) == 107000
    assert acl.rt.malloc(0, 0) == (0, 107000) and acl.rt.malloc(-5, 0) == (0, 107000)
    assert acl.rt.malloc(1 << 60, 0) == (0, 207001)
    assert "out of memory" in acl.get_recent_err_msg()
    assert acl.rt.get_mem_info(99) == (0, 0, 107000)


def test_reset_device_frees_what_was_made_on_it():
    before = torch.npu.memory_allocated()
    acl.rt.malloc(1 << 16, 0)
    assert acl.rt.reset_device(0) == 0 and torch.npu.memory_allocated() == before


def test_copies_go_there_and_back():
    sent = np.arange(6, dtype=np.float32)
    there, _ = acl.rt.malloc(sent.nbytes, 0)
    other, _ = acl.rt.malloc(sent.nbytes, 0)
    host, code = acl.rt.malloc_host(sent.nbytes)
    assert code == 0
    n = sent.nbytes
    assert acl.rt.memcpy(there, n, acl.util.numpy_to_ptr(sent), n, H2D) == 0
    assert acl.rt.memcpy(other, n, there, n, D2D) == 0
    assert acl.rt.memcpy(host, n, other, n, D2H) == 0
    assert acl.util.ptr_to_bytes(host, n) == sent.tobytes()
    assert acl.util.ptr_to_numpy(host, (2, 3), 11).tolist() == sent.reshape(2, 3).tolist()
    assert acl.rt.memset(there, n, 0x101, n - 4) == 0
    got = acl.util.ptr_to_bytes(there, n)
    assert got == b"\x01" * (n - 4) + sent.tobytes()[-4:]
    assert acl.rt.free_host(host) == 0 and acl.rt.free_host(host) == 207002


def test_copies_to_and_from_tensors():
    x = torch.arange(4.0, device="npu")
    data = np.full(4, 7, np.float32)
    address = acl.util.numpy_contiguous_to_ptr(data)
    assert acl.rt.memcpy(x.data_ptr(), 16, address, 16, H2D) == 0
    assert x.tolist() == [7.0] * 4
    x.mul_(2)
    assert acl.rt.memcpy(address, 16, x.data_ptr(), 16, D2H) == 0
    assert data.tolist() == [14.0] * 4


@pytest.mark.parametrize(
    "change",
    [
        {"dst": WILD}, {"src": WILD}, {"dst": 0}, {"src": 0}, {"count": 17}, {"count": -1}, {"kind": 9},
        {"count": 1 << 40, "dest_max": 1 << 40},
    ],
)  # fmt: skip
def test_wrong_copies_give_a_code_and_no_crash(change):
    x, y = torch.zeros(4, device="npu"), torch.ones(4)
    arguments = {"dst": x.data_ptr(), "dest_max": 16, "src": y.data_ptr(), "count": 16, "kind": H2D}
    assert acl.rt.memcpy(*(arguments | change).values()) == 107000
    assert x.tolist() == [0.0] * 4


def test_host_memory_is_not_the_device_s():
    x, y = torch.zeros(4), torch.ones(4)
    assert acl.rt.memcpy(x.data_ptr(), 16, y.data_ptr(), 16, H2D) == 107000
    assert acl.rt.memcpy(x.data_ptr(), 16, y.data_ptr(), 16, 0) == 0
    assert x.tolist() == [1.0] * 4
    with pytest.raises(TypeError, match="acl.rt.memcpy: src must be an int, received Tensor"):
        acl.rt.memcpy(x.data_ptr(), 16, y, 16, 0)


def test_wrong_memsets():
    x = torch.zeros(4, device="npu")
    assert acl.rt.memset(WILD, 16, 0, 16) == 107000
    assert acl.rt.memset(x.data_ptr(), 16, 0, 17) == 107000


def test_freed_memory_is_nobody_s():
    """It is still mapped: the allocator keeps it for the next tensor."""
    kept, code = acl.rt.malloc(4096, 0)
    assert code == 0
    freed, code = acl.rt.malloc(4096, 0)
    assert code == 0 and acl.rt.free(freed) == 0 and acl.rt.free(freed) == 207002
    host, code = acl.rt.malloc_host(4096)
    assert code == 0
    for kind in range(5):
        assert acl.rt.memcpy(freed, 4096, host, 4096, kind) == 107000
        assert acl.rt.memcpy(host, 4096, freed, 4096, kind) == 107000
    assert acl.rt.memset(freed, 4096, 0, 4096) == 107000
    assert acl.rt.memset_async(freed, 4096, 0, 4096, 0) == 107000
    assert acl.rt.memset(kept, 1 << 30, 0, 1 << 30) == 107000  # past the end of its segment
    assert acl.rt.memset(kept, 4096, 0, 4096) == 0
    assert acl.rt.free(kept) == acl.rt.free_host(host) == 0


@pytest.mark.usefixtures("own_segments")
def test_a_block_ends_where_it_was_said_to():
    """Blocks that follow each other in one segment of the allocator are two, whoever holds the second."""
    (first, _), (second, _) = acl.rt.malloc(4096, 0), acl.rt.malloc(4096, 0)
    low = min(first, second)
    assert abs(first - second) == 4096
    assert acl.rt.memset(low, 4097, 0, 4097) == 107000
    assert acl.rt.memset(low + 4000, 97, 0, 97) == 107000
    assert acl.rt.memcpy(low, 8192, low, 8192, 3) == 107000
    assert acl.rt.memset(low, 4096, 0, 4096) == acl.rt.memset(low + 4000, 96, 0, 96) == 0
    assert acl.rt.free(first) == acl.rt.free(second) == 0


@pytest.mark.parametrize("size", [2**62, 2**63 - 1, 2**63, 2**64, 2**70])
def test_sizes_that_nothing_has(size):
    assert acl.rt.malloc(size, 0) == (0, 207001)
    assert acl.rt.malloc_host(size) == (0, 207001)
    assert "out of" in acl.get_recent_err_msg()


def test_pages_that_are_mapped_and_not_there(tmp_path):
    """A file that became shorter, and pages of the kernel: reading them ends a process."""
    path = tmp_path / "file"
    path.write_bytes(bytes(4 * mmap.PAGESIZE))
    host, _ = acl.rt.malloc_host(8)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        view = (ctypes.c_char * len(mapped)).from_buffer(mapped)
        start, last = ctypes.addressof(view), ctypes.addressof(view) + len(mapped) - 8
        assert acl.rt.memcpy(last, 8, host, 8, 0) == acl.rt.memcpy(host, 8, last, 8, 0) == 0
        file.truncate(mmap.PAGESIZE)
        assert acl.rt.memcpy(start, 8, host, 8, 0) == acl.rt.memcpy(host, 8, start, 8, 0) == 0
        assert acl.rt.memcpy(last, 8, host, 8, 0) == acl.rt.memcpy(host, 8, last, 8, 0) == 107000
        assert acl.rt.memset(last, 8, 0, 8) == 107000
        with pytest.raises(ValueError, match="expected the address of 8 bytes of this process"):
            acl.util.ptr_to_bytes(last, 8)
        del view
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "[v" in line:
            first = int(line.partition("-")[0], 16)
            assert acl.rt.memcpy(host, 8, first, 8, 0) in (0, 107000)
    acl.rt.free_host(host)


def test_streams_and_events():
    stream, code = acl.rt.create_stream()
    assert code == 0
    start, _ = acl.rt.create_event()
    end, _ = acl.rt.create_event_with_flag(8)
    assert acl.rt.event_elapsed_time(start, end)[1] == 107006
    x = torch.zeros(4, device="npu")
    torch.npu.synchronize()
    data = np.ones(4, np.float32)
    assert acl.rt.record_event(start, stream) == 0
    address = acl.util.numpy_to_ptr(data)
    assert acl.rt.memcpy_async(x.data_ptr(), 16, address, 16, H2D, stream) == 0
    assert acl.rt.record_event(end, stream) == 0
    assert acl.rt.stream_wait_event(0, end) == 0
    assert acl.rt.synchronize_stream(stream) == 0 and acl.rt.synchronize_event(end) == 0
    assert x.tolist() == [1.0] * 4
    assert acl.rt.stream_query(stream) == (0, 0) and acl.rt.query_event_status(end) == (1, 0)
    elapsed, code = acl.rt.event_elapsed_time(start, end)
    assert code == 0 and elapsed >= 0
    assert acl.rt.memset_async(x.data_ptr(), 16, 0, 16, torch.npu.current_stream().npu_stream) == 0
    assert x.tolist() == [0.0] * 4
    assert acl.rt.destroy_event(end) == 0 and acl.rt.destroy_event(end) == 107000
    assert acl.rt.destroy_stream(stream) == 0 and acl.rt.destroy_stream(stream) == 107000
    assert acl.rt.synchronize_stream(stream) == 107000
    assert acl.rt.record_event(start, 12345) == 107000
    assert acl.rt.memset_async(x.data_ptr(), 16, 0, 16, 12345) == 107000


def test_an_async_copy_waits_for_its_stream():
    """Work on a stream that waits for an event nobody has recorded runs when it is recorded."""
    stream = torch.npu.Stream()
    event = torch.npu.ExternalEvent()
    x, y = torch.zeros(4, device="npu"), torch.ones(4, device="npu")
    with torch.npu.stream(stream):
        event.wait(stream)
        assert acl.rt.memcpy_async(x.data_ptr(), 16, y.data_ptr(), 16, D2D, stream.npu_stream) == 0
    assert x.cpu().tolist() == [0.0] * 4
    event.record(torch.npu.current_stream())
    stream.synchronize()
    assert x.tolist() == [1.0] * 4


def test_addresses_and_buffers():
    data = b"abcd"
    assert acl.util.ptr_to_bytes(acl.util.bytes_to_ptr(data), 4) == data
    with pytest.raises(ValueError, match="expected the address of 4 bytes of this process"):
        acl.util.ptr_to_bytes(WILD, 4)
    with pytest.raises(ValueError, match="data_type must be one of"):
        acl.util.ptr_to_numpy(acl.util.bytes_to_ptr(data), (4,), 99)
    with pytest.raises(TypeError, match="array must be a numpy array, received list"):
        acl.util.numpy_to_ptr([1])
    with pytest.raises(TypeError, match="data must be bytes"):
        acl.util.bytes_to_ptr("abcd")
    with pytest.raises(ValueError, match="must be contiguous"):
        acl.util.numpy_contiguous_to_ptr(np.ones((4, 4))[:, 1])


def test_models_and_compiled_operators_say_what_they_are():
    with pytest.raises(
        NotImplementedError, match="acl.mdl.load_from_file: an offline model is machine code"
    ):
        acl.mdl.load_from_file("model.om")
    with pytest.raises(NotImplementedError, match="acl.op.execute_v2: a compiled operator"):
        acl.op.execute_v2()
    from acl.rt import memcpy

    assert memcpy is acl.rt.memcpy
