"""torch_npu._C and torch_npu.utils: the private names that public projects call."""

import ctypes
import os

import pytest
import torch

import torch_npu
import torch_npu.utils.collect_env
from torch_npu.utils._path_manager import PathManager

C = torch_npu._C


def test_streams_by_number():
    stream = torch.npu.Stream()
    C._npu_setStream(stream.stream_id, stream.device_index, stream.device_type)
    assert C._npu_getCurrentStream(0)[0] == stream.stream_id
    assert C._npu_getCurrentRawStream(0) == stream.npu_stream
    C._npu_setStream(*C._npu_getDefaultStream(0))
    assert torch.npu.current_stream() == torch.npu.default_stream()


def test_erase_stream_undoes_record_stream():
    stream = torch.npu.Stream()
    x = torch.ones(4, device="npu")
    x.record_stream(stream)
    torch_npu.npu.utils._erase_stream(x, stream)
    C._npu_eraseStream(x, stream.stream_id, stream.device_index, stream.device_type)
    with pytest.raises(TypeError, match="tensor should be torch.Tensor"):
        torch_npu.npu.utils._erase_stream(1, stream)
    with pytest.raises(TypeError, match="stream should be torch_npu.npu.Stream"):
        torch_npu.npu.utils._erase_stream(x, 1)
    with pytest.raises(RuntimeError, match="expected an npu tensor"):
        C._npu_eraseStream(torch.ones(1), 0, 0, stream.device_type)


def test_a_weak_tensor_keeps_nothing_alive():
    before = torch.npu.memory_allocated()
    x = torch.arange(6.0, device="npu").reshape(2, 3)
    weak = C._weak_ref_tensor(x.t())
    assert weak.data_ptr() == x.data_ptr() and torch.equal(weak, x.t())
    assert weak.stride() == x.t().stride()
    weak.add_(1)
    assert x[0, 0].item() == 1
    del x
    assert torch.npu.memory_allocated() == before
    with pytest.raises(RuntimeError, match="expected an NPU tensor"):
        C._weak_ref_tensor(torch.ones(1))


def test_storage_use_count():
    x = torch.ones(2, device="npu")
    count = C._storage_Use_Count(x.untyped_storage()._cdata)
    y = x.view(1, 2)
    assert C._storage_Use_Count(x.untyped_storage()._cdata) == count + 1
    del y


def test_pools_by_id():
    pool = (77, 0)
    C._npu_beginAllocateCurrentStreamToPool(0, pool)
    x = torch.ones(100, device="npu")
    C._npu_endAllocateToPool(0, pool)
    held = C._npu_memorySnapshot(pool)["segments"]
    assert any(s["address"] <= x.data_ptr() < s["address"] + s["total_size"] for s in held)
    del x
    C._npu_releasePool(0, pool)
    assert not C._npu_memorySnapshot(pool)["segments"]
    with pytest.raises(RuntimeError, match="not in use"):
        C._npu_endAllocateToPool(0, pool)


def test_device_functions():
    assert C._npu_getDeviceCount() == torch.npu.device_count()
    assert C._npu_getDeviceName() == torch.npu.get_device_name()
    torch.ones(1, device="npu")
    assert C._npu_getDeviceWithoutSet() == 0
    assert C._npu_maybeExchangeDevice(2) == 0 and torch.npu.current_device() == 2
    assert C._npu_maybeExchangeDevice(-1) == 2 and torch.npu.current_device() == 2
    assert C._npu_hasPrimaryContext(0) and not C._npu_hasPrimaryContext(99)


def test_thread_affinity():
    before = os.sched_getaffinity(0)
    try:
        torch_npu.utils.set_thread_affinity([min(before), min(before)])
        assert os.sched_getaffinity(0) == {min(before)}
        torch_npu.utils.set_thread_affinity(
            [[min(before), min(before)], [max(before), max(before)]]
        )
        assert os.sched_getaffinity(0) == {min(before), max(before)}
        torch_npu.utils.set_thread_affinity()
        assert os.sched_getaffinity(0) == before
    finally:
        torch_npu.utils.reset_thread_affinity()
    assert os.sched_getaffinity(0) == before
    with pytest.raises(ValueError, match="two processor numbers"):
        torch_npu.utils.set_thread_affinity([0])
    with pytest.raises(ValueError, match="ascending"):
        torch_npu.utils.set_thread_affinity([3, 1])
    with pytest.raises(ValueError, match="no processor of"):
        torch_npu.utils.set_thread_affinity([5000, 5001])


def test_report_of_the_environment():
    assert torch_npu.utils.collect_env.get_cann_version() == torch.version.cann
    assert torch_npu.utils.collect_env.get_torch_npu_version() == torch_npu.__version__


def test_path_manager(tmp_path):
    folder = tmp_path / "a" / "b"
    PathManager.make_dir_safety(str(folder))
    PathManager.check_directory_path_writeable(str(folder))
    file = folder / "f"
    PathManager.create_file_safety(str(file))
    PathManager.check_directory_path_readable(str(file))
    assert file.stat().st_mode & 0o777 == 0o640
    PathManager.remove_file_safety(str(file))
    PathManager.remove_path_safety(str(folder))
    assert not folder.exists()
    with pytest.raises(RuntimeError, match="does not exist"):
        PathManager.check_directory_path_readable(str(folder))
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(RuntimeError, match="symbolic link"):
        PathManager.check_directory_path_readable(str(tmp_path / "link"))
    with pytest.raises(RuntimeError, match="is a directory, not a file"):
        PathManager.check_input_file_path(str(tmp_path))
    (tmp_path / "plain").write_text("")
    with pytest.raises(RuntimeError, match="is a file, not a directory"):
        PathManager.check_input_directory_path(str(tmp_path / "plain"))
    with pytest.raises(RuntimeError, match="empty or too long"):
        PathManager.check_input_file_path("")


def test_raw_runtime_calls():
    runtime = torch.npu.npurt()
    handle = ctypes.c_void_p()
    assert runtime.npuStreamCreate(ctypes.addressof(handle)) == 0
    with torch.npu.stream(torch.npu.ExternalStream(handle.value)):
        assert torch.npu.current_stream().npu_stream == handle.value
        assert (torch.ones(2, device="npu") + 1).sum().item() == 4
    assert runtime.npuStreamDestroy(handle.value) == 0
    assert runtime.npuStreamDestroy(handle.value) != 0 and runtime.npuStreamCreate(0) != 0
    x = torch.ones(4)
    assert runtime.npuHostRegister(x.data_ptr(), 16, 0) == 0
    assert runtime.npuHostRegister(x.data_ptr(), 16, 0) != 0  # twice
    assert runtime.npuHostUnregister(x.data_ptr()) == 0
    assert runtime.npuHostUnregister(x.data_ptr()) != 0
    assert runtime.npuHostRegister(0, 16, 0) != 0


def test_empty_strided():
    found = torch_npu._C._empty_strided_npu((2, 3), (1, 2), torch.float16)
    assert (found.shape, found.stride(), found.dtype) == ((2, 3), (1, 2), torch.float16)
    assert found.device == torch.device("npu", torch.npu.current_device())


def test_a_program_puts_its_objects_into_torch(monkeypatch):
    before = torch.profiler.schedule
    monkeypatch.setattr(torch.profiler, "schedule", before)  # put back at the end
    torch_npu._apply_patches([["profiler.schedule", torch_npu.profiler.schedule]])
    assert torch.profiler.schedule is torch_npu.profiler.schedule is not before
    with pytest.raises(AttributeError, match="nowhere"):
        torch_npu._apply_patches([["nowhere.schedule", None]])
