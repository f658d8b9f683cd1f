"""PyTorch knows the device: names, methods, device strings, torch.accelerator."""

from __future__ import annotations

import pytest
import torch

import torch_npu
from softnpu.python_versions import tomllib
from tests import ROOT


def test_device_strings_and_objects_agree():
    assert torch.device("npu", 1) == torch.device("npu:1")
    assert torch.device("npu").index is None
    assert str(torch.empty(1, device="npu").device) == "npu:0"
    assert str(torch.empty(1, device="npu:5").device) == "npu:5"
    assert torch.empty(1, device=torch.device("npu", 2)).get_device() == 2


def test_an_integer_device_means_the_accelerator():
    assert torch.device(3) == torch.device("npu", 3)
    assert torch.ones(2, device=3).device == torch.device("npu:3")


def test_eight_ascend910b3_by_default():
    assert torch.npu.is_available()
    assert torch.npu.device_count() == 8
    assert torch.npu.get_device_name(7) == "Ascend910B3"


def test_properties_say_that_it_is_emulated():
    properties = torch.npu.get_device_properties("npu:1")
    assert properties.emulated is True
    assert properties.name == "Ascend910B3"
    assert properties.total_memory == 64 * 2**30


def test_torch_npu_is_the_device_module():
    assert torch.npu is torch_npu.npu
    assert torch.get_device_module("npu") is torch.npu
    assert torch.get_device_module(torch.device("npu:1")) is torch.npu
    assert torch.get_device_module() is torch.npu


def test_tensor_methods():
    host = torch.arange(4.0)
    x = host.npu()
    assert x.is_npu and not x.is_cpu and not x.is_cuda
    assert not host.is_npu
    assert x.device == torch.device("npu:0")
    assert host.npu(3).device.index == 3
    assert host.npu("npu:2").device.index == 2
    assert host.npu(torch.device("npu", 1)).device.index == 1
    assert torch.equal(x.cpu(), host)
    assert torch.equal(host.to("npu").cpu(), host)
    assert torch.equal(host.npu(non_blocking=True).cpu(), host)


def test_npu_returns_self_where_it_is_already():
    x = torch.ones(2, device="npu:0")
    assert x.npu() is x
    assert x.to("npu:0") is x
    with torch.npu.device(1):
        assert x.npu().device.index == 1


def test_module_methods():
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    assert module.npu() is module
    assert {t.device for t in [*module.parameters(), *module.buffers()]} == {torch.device("npu:0")}
    assert module(torch.ones(2, 2, device="npu")).is_npu
    module.npu(2)
    assert next(module.parameters()).device.index == 2
    module.cpu()
    assert {t.device.type for t in [*module.parameters(), *module.buffers()]} == {"cpu"}
    module.to("npu:1")
    assert all(p.is_npu and p.is_leaf for p in module.parameters())


def test_storage_methods():
    host = torch.arange(3.0)
    storage = host.untyped_storage().npu()
    assert storage.is_npu and storage.device == torch.device("npu:0")
    assert not host.untyped_storage().is_npu
    assert storage.cpu().tolist() == host.untyped_storage().tolist()


def test_packed_sequence_methods():
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3, 2), torch.ones(1, 2)])
    moved = packed.npu()
    assert moved.is_npu and not packed.is_npu
    padded, lengths = torch.nn.utils.rnn.pad_packed_sequence(moved)
    assert padded.is_npu and lengths.tolist() == [3, 1]


def test_the_accelerator_is_the_npu():
    assert torch.accelerator.is_available()
    assert torch.accelerator.device_count() == 8
    assert torch.accelerator.current_accelerator() == torch.device("npu")
    assert torch.accelerator.current_device_index() == 0
    with torch.accelerator.device_index(3):
        assert torch.accelerator.current_device_index() == 3
        assert torch.npu.current_device() == 3
        assert torch.empty(1, device="npu").device.index == 3
    assert torch.npu.current_device() == 0
    torch.accelerator.set_device_index(2)
    try:
        assert torch.npu.current_device() == 2
    finally:
        torch.accelerator.set_device_index(0)
    torch.accelerator.synchronize()


def test_accelerator_memory_is_the_devices():
    x = torch.empty(1000, device="npu")
    assert torch.accelerator.memory_allocated() == torch.npu.memory_allocated()
    assert torch.accelerator.max_memory_allocated() == torch.npu.max_memory_allocated()
    assert torch.accelerator.memory_reserved() == torch.npu.memory_reserved()
    stats = torch.accelerator.memory_stats()
    assert stats["allocated_bytes.all.current"] == torch.npu.memory_allocated()
    of_npu = torch.npu.memory_stats()
    assert {name: of_npu[name] for name in stats} == dict(stats)
    assert stats["max_split_size"] == -1
    assert torch.accelerator.get_memory_info() == torch.npu.mem_get_info()
    torch.accelerator.reset_peak_memory_stats()
    assert torch.accelerator.max_memory_allocated() == torch.npu.memory_allocated()
    torch.accelerator.empty_cache()
    del x


def test_accelerator_streams():
    before = torch.accelerator.current_stream()
    side = torch.Stream("npu")
    torch.accelerator.set_stream(side)
    try:
        assert torch.accelerator.current_stream() == side
        assert torch.npu.current_stream().stream_id == side.stream_id
    finally:
        torch.accelerator.set_stream(before)
    assert torch.accelerator.current_stream() == before


def test_current_device_follows_set_device_and_the_context_manager():
    torch.npu.set_device("npu:4")
    try:
        assert torch.npu.current_device() == 4
        assert torch.ones(1, device="npu").device.index == 4
        with torch.npu.device(6):
            assert torch.npu.current_device() == 6
        with torch.npu.device_of(torch.ones(1, device="npu:7")):
            assert torch.npu.current_device() == 7
        with torch.npu.device_of(torch.ones(1)):
            assert torch.npu.current_device() == 4
    finally:
        torch.npu.set_device(0)


def test_the_context_manager_restores_the_device_after_an_exception():
    with pytest.raises(KeyError), torch.npu.device(5):
        raise KeyError
    assert torch.npu.current_device() == 0


def test_an_operator_runs_on_the_device_of_its_tensors_not_the_current_one():
    x = torch.ones(4, device="npu:3")
    assert (x + 1).device.index == 3
    assert torch.zeros_like(x).device.index == 3
    assert torch.npu.current_device() == 0


def test_tensors_move_between_devices():
    x = torch.randn(3, 4, device="npu:1")
    y = x.to("npu:2")
    assert y.device.index == 2 and y.data_ptr() != x.data_ptr()
    assert torch.equal(x.cpu(), y.cpu())
    y.copy_(x + 1)
    assert torch.equal(y.cpu(), x.cpu() + 1)


def test_version_names_torch_and_softnpu():
    assert torch_npu.__version__.startswith(torch.__version__.split("+")[0])


def test_the_autoload_entry_point_exists():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    module, function = project["entry-points"]["torch.backends"]["npu"].split(":")
    assert module == "torch_npu"
    assert getattr(torch_npu, function)() is None


def test_patches_are_recorded_and_can_be_undone():
    from torch_npu import _patch

    class Owner:
        kept = 1

    table = {"kept": 1}
    before = list(_patch._applied)
    _patch._applied.clear()
    try:
        assert _patch.replace(Owner, "kept", 2) == 1
        assert _patch.replace(Owner, "added", 3) is None
        _patch.replace_entry(table, "kept", 2)
        _patch.replace_entry(table, "added", 3)
        assert (Owner.kept, Owner.added, table) == (2, 3, {"kept": 2, "added": 3})
        _patch.undo()
        assert Owner.kept == 1 and not hasattr(Owner, "added") and table == {"kept": 1}
    finally:
        _patch._applied[:] = before


def test_torch_is_as_before_once_its_patches_are_undone():
    from multiprocessing.reduction import ForkingPickler

    from torch.multiprocessing import reductions

    from torch_npu import _patch

    def state():
        return torch.Tensor.__dlpack_device__, dict(ForkingPickler._extra_reducers)

    patched = state()
    _patch.undo()
    try:
        assert torch.Tensor.__dlpack_device__.__module__.startswith("torch.")
        assert ForkingPickler._extra_reducers[torch.Tensor] is reductions.reduce_tensor
        assert state() != patched
    finally:
        _patch.apply()
    assert state()[1] == patched[1]
