"""Tensors that leave the process and come back: save and load, pickle, copies, loaders, sharing, DLPack, numpy."""

from __future__ import annotations

import copy
import io
import pickle

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, TensorDataset

import torch_npu  # noqa: F401
from tests.device.process import output, run_python


def saved(value, **options):
    file = io.BytesIO()
    torch.save(value, file, **options)
    file.seek(0)
    return file


# --- save and load ----------------------------------------------------------------------------------


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("zip_format", [True, False])
def test_save_and_load_keep_the_device(weights_only, zip_format):
    value = {
        "a": torch.randn(3, device="npu:1"),
        "b": torch.arange(4, device="npu:2"),
        "c": torch.ones(2),
    }
    back = torch.load(
        saved(value, _use_new_zipfile_serialization=zip_format), weights_only=weights_only
    )
    for name, tensor in value.items():
        assert back[name].device == tensor.device and torch.equal(back[name], tensor)
        assert back[name].data_ptr() != tensor.data_ptr()


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("cpu", "cpu"),
        ("npu:3", "npu:3"),
        ("npu", "npu:0"),
        (torch.device("npu:2"), "npu:2"),
        ({"npu:1": "npu:4"}, "npu:4"),
        ({"npu:1": "cpu"}, "cpu"),
        (lambda storage, location: storage.npu(5), "npu:5"),
        (lambda storage, location: storage, "cpu"),
    ],
)
def test_map_location_from_the_device(where, expected):
    x = torch.randn(4, device="npu:1")
    back = torch.load(saved(x), map_location=where)
    assert str(back.device) == expected and torch.equal(back.cpu(), x.cpu())


def test_map_location_from_the_host():
    x = torch.randn(4)
    back = torch.load(saved(x), map_location="npu:6")
    assert str(back.device) == "npu:6" and torch.equal(back.cpu(), x)


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.int8, torch.bool, torch.complex64]
)
def test_dtypes_and_strides_survive(dtype):
    x = (torch.randn(3, 5, device="npu") * 3).to(dtype).t()[1:4]
    back = torch.load(saved(x))
    assert torch.equal(back.cpu(), x.cpu()) and back.stride() == x.stride() and back.dtype == dtype


def test_shared_storages_stay_shared():
    base = torch.zeros(6, device="npu")
    first, second = torch.load(saved([base[:4], base[2:]]))
    first[2] = 7
    assert second[0].item() == 7


def test_parameters_and_state_dicts():
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).npu()
    optimizer = torch.optim.Adam(module.parameters())
    module(torch.randn(5, 3, device="npu")).sum().backward()
    optimizer.step()
    file = saved({"module": module.state_dict(), "optimizer": optimizer.state_dict()})
    state = torch.load(file, map_location="cpu")
    assert {v.device.type for v in state["module"].values()} == {"cpu"}
    other = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).npu()
    other.load_state_dict(state["module"])
    again = torch.optim.Adam(other.parameters())
    again.load_state_dict(state["optimizer"])
    for a, b in zip(module.parameters(), other.parameters(), strict=True):
        assert b.is_npu and torch.equal(a, b)
        assert again.state[b]["exp_avg"].is_npu
        assert torch.equal(again.state[b]["exp_avg"], optimizer.state[a]["exp_avg"])


def test_a_whole_module():
    module = torch.nn.Linear(3, 2).npu()
    back = torch.load(saved(module), weights_only=False)
    assert isinstance(back.weight, torch.nn.Parameter) and back.weight.is_npu
    assert torch.equal(back.weight, module.weight) and back.weight.requires_grad


def test_sparse_tensors_are_saved():
    x = torch.eye(3).to_sparse().npu()
    back = torch.load(saved(x))
    assert back.device.type == "npu" and torch.equal(back.to_dense().cpu(), torch.eye(3))


def test_memory_mapped_loading(tmp_path):
    torch.save(torch.arange(5.0, device="npu"), tmp_path / "x.pt")
    back = torch.load(tmp_path / "x.pt", mmap=True, map_location="cpu")
    assert back.tolist() == [0, 1, 2, 3, 4]


def test_loading_onto_a_device_that_does_not_exist_names_it():
    with pytest.raises(RuntimeError, match="99"):
        torch.load(saved(torch.ones(2, device="npu")), map_location="npu:99")


def test_loading_without_a_device(tmp_path):
    torch.save(torch.arange(3.0, device="npu:7"), tmp_path / "x.pt")
    code = f"""
        import torch, torch_npu
        print(torch.load({str(tmp_path / "x.pt")!r}, map_location="cpu").tolist())
        try:
            torch.load({str(tmp_path / "x.pt")!r})
        except RuntimeError as error:
            print("map_location" in str(error), "npu" in str(error).lower())
        """
    assert output(code, SOFTNPU="0").split("\n") == ["[0.0, 1.0, 2.0]", "True True"]


# --- pickle and copies --------------------------------------------------------------------------------


def test_pickle_and_deepcopy():
    x = torch.randn(3, device="npu:2", requires_grad=True)
    for back in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x)):
        assert back.device == x.device and back.requires_grad and torch.equal(back, x)
        assert back.data_ptr() != x.data_ptr()
    assert copy.copy(x).data_ptr() == x.data_ptr()


def test_deepcopy_of_a_module_keeps_ties():
    module = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)]).npu()
    module[1].weight = module[0].weight
    twin = copy.deepcopy(module)
    assert twin[0].weight is twin[1].weight and twin[0].weight is not module[0].weight
    assert twin[0].weight.is_npu and torch.equal(twin[0].weight, module[0].weight)


def test_deepcopy_keeps_views_shared_and_strides():
    base = torch.arange(6.0, device="npu").reshape(2, 3)
    first, second = copy.deepcopy([base.t(), base[1]])
    assert first.stride() == (1, 3)
    second.fill_(9)
    assert first[:, 1].tolist() == [9, 9, 9]


def test_storages_copy():
    x = torch.arange(4.0, device="npu")
    storage = copy.deepcopy(x.untyped_storage())
    assert storage.device.type == "npu" and storage.data_ptr() != x.data_ptr()
    assert x.untyped_storage().clone().tolist() == x.cpu().untyped_storage().tolist()


# --- loaders --------------------------------------------------------------------------------------------


def test_dataloader_with_workers_and_pinned_memory():
    data = TensorDataset(torch.arange(32.0).reshape(16, 2), torch.arange(16))
    loader = DataLoader(data, batch_size=4, num_workers=2, pin_memory=True)
    total = torch.zeros(2, device="npu")
    for features, labels in loader:
        assert features.is_pinned() and labels.is_pinned()
        total += features.to("npu", non_blocking=True).sum(0)
    assert total.tolist() == [240, 256]


def test_dataloader_pins_to_a_named_device():
    loader = DataLoader(TensorDataset(torch.ones(4, 2)), pin_memory=True)
    assert all(batch[0].is_pinned() for batch in loader)


class OnDevice(torch.utils.data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return torch.full((2,), float(index), device="npu")


def test_device_work_in_a_forked_worker_is_a_clear_error():
    torch.ones(1, device="npu")
    with pytest.raises(RuntimeError, match="Cannot re-initialize NPU in forked subprocess"):
        next(iter(DataLoader(OnDevice(), num_workers=1, multiprocessing_context="fork")))


# --- processes ------------------------------------------------------------------------------------------


def test_fork_is_detected():
    printed = output(
        """
        import os, sys, torch, torch_npu
        x = torch.ones(3, device="npu")
        def attempt(what):
            try:
                what()
            except RuntimeError as error:
                print("Cannot re-initialize NPU in forked subprocess" in str(error), "spawn" in str(error))
            else:
                print("no error")
        if os.fork() == 0:
            attempt(lambda: torch.ones(1, device="npu"))
            attempt(lambda: x + 1)
            attempt(lambda: x.cpu())
            attempt(lambda: torch.npu.current_device())
            attempt(lambda: torch.npu.synchronize())
            attempt(lambda: torch.npu.Stream())
            torch.manual_seed(0)  # workers do this; it must pass
            print(torch.npu._is_in_bad_fork(), torch.npu.is_initialized(), torch.ones(2).sum().item())
            sys.stdout.flush()
            os._exit(0)
        os.wait()
        print(torch.npu._is_in_bad_fork(), (x + 1).sum().item())
        """
    ).split("\n")
    assert printed == ["True True"] * 6 + ["True False 2.0", "False 6.0"]


def test_a_fork_before_the_first_use_is_fine():
    printed = output(
        """
        import os, sys, torch, torch_npu
        torch.npu.device_count(), torch.npu.is_available()
        if os.fork() == 0:
            print(torch.ones(3, device="npu").sum().item())
            sys.stdout.flush()
            os._exit(0)
        os.wait()
        print(torch.ones(4, device="npu").sum().item())
        """
    )
    assert printed.split("\n") == ["3.0", "4.0"]


def _child(inbox, outbox):
    whole, part, parameter, storage = inbox.get(timeout=60)
    devices = [str(t.device) for t in (whole, part, parameter, storage)]
    kinds = [type(parameter).__name__, parameter.requires_grad, part.stride(), part.tolist()]
    whole.add_(100)
    fresh = torch.full((3,), 5.0, device="npu:1")
    outbox.put((devices, kinds, part.sum().item(), fresh))
    inbox.get(timeout=60)  # stay until the parent has read `fresh`
    outbox.put(fresh.tolist())


def test_sharing_between_spawned_processes():
    context = mp.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    process = context.Process(target=_child, args=(inbox, outbox), daemon=True)
    process.start()
    try:
        whole = torch.arange(6.0, device="npu:2").reshape(2, 3)
        before = whole.clone()
        parameter = torch.nn.Parameter(torch.ones(2, device="npu"))
        inbox.put((whole, whole.t()[1:], parameter, torch.ones(2, device="npu").untyped_storage()))
        devices, kinds, total, fresh = outbox.get(timeout=60)
        assert devices == ["npu:2", "npu:2", "npu:0", "npu:0"]
        assert kinds == ["Parameter", True, (1, 3), [[1, 4], [2, 5]]]
        assert torch.equal(whole, before + 100)  # the child wrote our memory
        assert total == (1 + 4 + 2 + 5) + 400  # and its view saw its write
        assert str(fresh.device) == "npu:1" and fresh.tolist() == [5, 5, 5]
        fresh.mul_(2)
        inbox.put("go on")
        assert outbox.get(timeout=60) == [10, 10, 10]  # we wrote the child's memory
        process.join(60)
        assert process.exitcode == 0
        assert fresh.tolist() == [10, 10, 10]  # the bytes outlive the process that made them
    finally:
        if process.is_alive():
            process.terminate()


def test_sharing_refuses_a_tensor_with_history():
    from multiprocessing.reduction import ForkingPickler

    x = torch.ones(2, device="npu", requires_grad=True) * 2
    with pytest.raises(RuntimeError, match="non-leaf tensor"):
        ForkingPickler.dumps(x)


def test_sharing_keeps_the_values_and_frees_the_host_copy():
    from multiprocessing.reduction import ForkingPickler

    from torch_npu import _multiprocessing

    x = torch.arange(5.0, device="npu")
    view = x[1:]
    ForkingPickler.dumps(x)
    ForkingPickler.dumps(view)  # the same storage: shared once
    x.add_(1)
    assert view.tolist() == [2, 3, 4, 5] and x.device.type == "npu"
    del x, view
    _multiprocessing.forget_freed()
    assert not _multiprocessing._shared


def test_share_memory_is_a_no_op_as_on_cuda():
    x = torch.ones(3, device="npu")
    assert x.share_memory_() is x and x.is_shared()
    module = torch.nn.Linear(2, 2).npu()
    assert module.share_memory() is module and module.weight.is_npu


# --- numpy and DLPack --------------------------------------------------------------------------------


def test_numpy_refuses_as_on_cuda():
    x = torch.ones(2, device="npu")
    for convert in (lambda: x.numpy(), lambda: np.asarray(x), lambda: np.array(x)):
        with pytest.raises(
            TypeError,
            match=r"can't convert npu:0 device type tensor to numpy\. Use Tensor\.cpu\(\)",
        ):
            convert()
    assert x.cpu().numpy().tolist() == [1, 1] and x.numpy(force=True).tolist() == [1, 1]
    assert torch.from_numpy(np.ones(2)).npu().dtype == torch.float64
    assert torch.as_tensor(np.arange(3), device="npu").tolist() == [0, 1, 2]


def test_dlpack_round_trip_shares_memory():
    x = torch.arange(6.0, device="npu:1").reshape(2, 3).t()
    for back in (
        torch.from_dlpack(x),
        torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x)),
    ):
        assert back.device == x.device and back.data_ptr() == x.data_ptr()
        assert back.stride() == x.stride()
        x.add_(1)
        assert torch.equal(back, x)


def test_dlpack_device_is_the_extension_type():
    kind, index = torch.ones(1, device="npu:3").__dlpack_device__()
    assert (int(kind), index) == (12, 3)  # kDLExtDev


def test_dlpack_device_of_other_tensors_is_untouched():
    assert tuple(map(int, torch.ones(1).__dlpack_device__())) == (1, 0)  # kDLCPU
    assert np.from_dlpack(torch.ones(2)).tolist() == [1, 1]


def test_dlpack_refuses_gradients():
    with pytest.raises(BufferError, match="require gradient"):
        torch.from_dlpack(torch.ones(2, device="npu", requires_grad=True))


# --- default device ------------------------------------------------------------------------------------


def test_set_default_device():
    torch.set_default_device("npu:1")
    try:
        assert torch.ones(2).device == torch.device("npu:1")
        assert torch.tensor([1, 2]).device.index == 1 and torch.arange(3).is_npu
        assert torch.nn.Linear(2, 2).weight.device.index == 1
        assert torch.get_default_device() == torch.device("npu:1")
        y = torch.nn.LSTM(2, 3)(torch.randn(4, 2))[0]
        assert y.device.index == 1
        y.sum().backward()
        assert torch.randperm(4).is_npu and torch.ones(1, device="cpu").is_cpu
    finally:
        torch.set_default_device(None)
    assert torch.ones(1).is_cpu


def test_a_device_is_a_context_manager():
    with torch.device("npu:4"):
        assert torch.zeros(1).device.index == 4
    assert torch.zeros(1).is_cpu


def test_tensors_at_exit_do_not_crash():
    done = run_python(
        """
        import torch, torch_npu, threading
        keep = torch.ones(3, device="npu", requires_grad=True)
        torch.kept = keep * 2
        keep.mul(2).sum().backward()
        threading.Thread(target=lambda: torch.ones(5, device="npu:1"), daemon=True).start()
        event = torch.npu.Event(); event.record(); torch.event = event
        """
    )
    assert done.returncode == 0, done.stderr
