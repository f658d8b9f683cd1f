"""torch.npu.FloatStorage, torch.npu.FloatTensor and their kin."""

import pickle
import warnings

import pytest
import torch

import torch_npu
from torch_npu.npu._types import DTYPES

NAMES = sorted(DTYPES)


@pytest.mark.parametrize("name", NAMES)
def test_tensor_types(name):
    kind, dtype = getattr(torch.npu, f"{name}Tensor"), DTYPES[name]
    x = kind([1, 0, 1])
    assert x.dtype == dtype and x.device.type == "npu"
    assert x.tolist() == [1, 0, 1]
    assert isinstance(x, kind) and not isinstance(x.cpu(), kind)
    assert isinstance(x.type(), str) and x.type() == f"torch.npu.{name}Tensor"
    assert (
        kind(2, 3).shape == (2, 3) and kind().shape == (0,) and kind(torch.Size([4])).shape == (4,)
    )
    other = torch.float if dtype != torch.float else torch.int
    assert not isinstance(torch.ones(1, dtype=other, device="npu"), kind)
    converted = torch.ones(2, dtype=other).type(kind)
    assert converted.dtype == dtype and converted.device.type == "npu"
    assert torch.ones(2).type(f"torch.npu.{name}Tensor").dtype == dtype
    assert pickle.loads(pickle.dumps(kind)) is kind


def test_tensor_types_refuse():
    with pytest.raises(RuntimeError, match="expects device type: npu but device type: cpu"):
        torch.npu.FloatTensor(2, device="cpu")
    with pytest.raises(
        TypeError, match=r"expected torch.npu.FloatTensor \(got torch.FloatTensor\)"
    ):
        torch.npu.FloatTensor(torch.ones(2))
    with pytest.raises(TypeError, match="unexpected keyword argument 'dtype'"):
        torch.npu.FloatTensor(2, dtype=torch.half)


def test_tensor_on_another_device_and_from_a_tensor():
    x = torch.npu.HalfTensor([1.0, 2.0], device="npu:1")
    assert x.device.index == 1
    same = torch.npu.HalfTensor(x)
    assert same.data_ptr() == x.data_ptr()
    assert repr(torch.npu.HalfTensor) == "<class 'torch.npu.HalfTensor'>"


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("name", NAMES)
def test_storages(name):
    kind, dtype = getattr(torch.npu, f"{name}Storage"), DTYPES[name]
    assert kind in torch._storage_classes
    storage = kind(4)
    assert storage.dtype == dtype and len(storage) == 4 and storage.device.type == "npu"
    storage.fill_(1)
    assert [bool(v) for v in storage.tolist()] == [True] * 4
    assert isinstance(torch.ones(3, dtype=dtype, device="npu").storage(), kind)
    assert not isinstance(torch.ones(3, dtype=dtype).storage(), kind)
    assert pickle.loads(pickle.dumps(kind)) is kind
    moved = pickle.loads(pickle.dumps(storage))
    assert moved.tolist() == storage.tolist() and moved.device.type == "npu"


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_storages_from_values_and_conversions():
    storage = torch.npu.FloatStorage([1.0, 2.0, 3.0])
    assert storage.tolist() == [1.0, 2.0, 3.0]
    assert storage.cpu().tolist() == [1.0, 2.0, 3.0] and storage.cpu().device.type == "cpu"
    assert storage.half().dtype == torch.half
    tensor = torch.npu.FloatTensor(storage)
    assert tensor.data_ptr() == storage.data_ptr() and tensor.shape == (3,)


def test_storages_refuse():
    with pytest.raises(RuntimeError, match="from_buffer: Not available for NPU storage"):
        torch.npu.FloatStorage.from_buffer(b"1234")
    with pytest.raises(RuntimeError, match="_new_shared_filename: Not available"):
        torch.npu.FloatStorage._new_shared_filename(1, 2, 3)
    with pytest.raises(RuntimeError, match="_new_with_weak_ptr: Not available"):
        torch.npu.FloatStorage._new_with_weak_ptr(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises((RuntimeError, TypeError)):
            torch_npu.npu.FloatStorage("many")
