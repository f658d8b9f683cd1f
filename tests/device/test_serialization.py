"""Tensors that leave the process and come back: save and load, pickle, copies, numpy, DLPack."""

from __future__ import annotations

import copy
import io
import pickle

import numpy as np
import pytest
import torch

import torch_npu  # noqa: F401
from tests.device.process import output, run_python


def saved(value, **options):
    file = io.BytesIO()
    torch.save(value, file, **options)
    file.seek(0)
    return file


# --- save and load ---


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


# --- pickle and copies ---


def test_pickle_and_deepcopy():
    x = torch.randn(3, device="npu:2", requires_grad=True)
    for back in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x)):
        assert back.device == x.device and back.requires_grad and torch.equal(back, x)
        assert back.data_ptr() != x.data_ptr()
    assert copy.copy(x).data_ptr() == x.data_ptr()


def test_deepcopy_of_a_module_keeps_ties():
    module = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)]).npu()
    module[1].weight = module[0].weight
    copied = copy.deepcopy(module)
    assert copied[0].weight is copied[1].weight and copied[0].weight is not module[0].weight
    assert copied[0].weight.is_npu and torch.equal(copied[0].weight, module[0].weight)


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


# --- numpy and DLPack ---


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


# --- default device ---


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
        # A daemon inside a call of torch when the interpreter ends aborts it, on the CPU device too: it is done before.
        keeps = threading.Thread(target=lambda: setattr(torch, "other", torch.ones(5, device="npu:1")), daemon=True)
        keeps.start(); keeps.join()
        event = torch.npu.Event(); event.record(); torch.event = event
        """
    )
    assert done.returncode == 0, done.stderr
