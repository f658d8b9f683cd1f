"""npu_alloc_float_status, npu_get_float_status, npu_clear_float_status: the overflow flag as a tensor."""

import pytest
import torch

import torch_npu
from softnpu import _C
from tests.ops.families import as_chip
from tests.ops.support import make


@pytest.fixture
def saturation(monkeypatch):
    monkeypatch.setenv("INF_NAN_MODE_FORCE_DISABLE", "1")
    _C.set_saturate(True)
    _C.clear_overflow_flag(0)
    yield
    _C.clear_overflow_flag(0)
    _C.set_saturate(False)


def overflow():
    x = torch.tensor([40000.0], dtype=torch.float16).npu()
    return x + x


def test_alloc():
    status = torch_npu.npu_alloc_float_status(make(1, 2, 3))
    assert status.tolist() == [0] * 8 and status.dtype == torch.float32
    assert torch_npu.npu_alloc_float_status(make(2, device="npu:1")).device.index == 1


@pytest.mark.family("A2")
@pytest.mark.parametrize("mode", [0, 1])
def test_the_flag(saturation, mode):
    status = torch_npu.npu_alloc_float_status(torch.zeros(8).npu())
    assert torch_npu.npu_get_float_status(status, mode).tolist() == [0] * 8
    overflow()
    read = torch_npu.npu_get_float_status(status, mode)
    assert read.tolist() == [1] + [0] * 7 and read.dtype == torch.int32
    assert torch.npu.get_npu_overflow_flag() is True  # the same flag
    assert torch_npu.npu_get_float_status(status, mode)[0] == 1  # reading does not clear
    cleared = torch_npu.npu_clear_float_status(read, mode)
    assert cleared.tolist() == [0] * 8 and cleared.dtype == torch.int32
    assert torch_npu.npu_get_float_status(status, mode)[0] == 0
    assert torch.npu.get_npu_overflow_flag() is False


@pytest.mark.family("A2")
def test_each_device_has_its_own(saturation):
    overflow()
    other = torch.zeros(8, device="npu:1")
    assert torch_npu.npu_get_float_status(other)[0] == 0
    torch_npu.npu_clear_float_status(other)
    assert torch_npu.npu_get_float_status(torch.zeros(8).npu())[0] == 1


@pytest.mark.family("A2")
def test_inf_nan_mode_has_no_flag():
    assert overflow().isinf().all()
    assert torch_npu.npu_get_float_status(torch.rand(2).npu()).tolist() == [0] * 8
    cleared = torch_npu.npu_clear_float_status(torch.rand(2).npu())
    assert cleared.tolist() == [0] * 8 and cleared.dtype == torch.float32


def test_older_products_write_into_the_tensor_given(saturation):
    with as_chip("Ascend910A"):
        status = torch_npu.npu_alloc_float_status(torch.zeros(8).npu())
        overflow()
        assert torch_npu.npu_get_float_status(status) is status
        assert status.tolist() == [1] + [0] * 7
        assert torch_npu.npu_get_float_status(status, 1).dtype == torch.int32


@pytest.mark.parametrize("name", ["npu_get_float_status", "npu_clear_float_status"])
def test_bad_arguments(name):
    function = getattr(torch_npu, name)
    with pytest.raises(RuntimeError, match=f"{name}: argument 'mode' must be 0 or 1.*2"):
        function(torch.zeros(8).npu(), 2)
    with (
        as_chip("Ascend910A"),
        pytest.raises(RuntimeError, match="argument 'self' must be of dtype .*float16"),
    ):
        function(torch.zeros(8).npu().half())
    assert function(torch.zeros(3).npu().half()).tolist() == [0] * 8  # Atlas A2 does not read it
    with pytest.raises(NotImplementedError, match="CPU"):
        function(torch.zeros(8))


def test_alloc_refuses_what_is_no_dense_npu_tensor():
    with pytest.raises(NotImplementedError, match="CPU"):
        torch_npu.npu_alloc_float_status(torch.zeros(8))
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch_npu.npu_alloc_float_status(torch.eye(3).to_sparse().npu())
    with pytest.raises((TypeError, RuntimeError), match="Tensor"):
        torch_npu.npu_alloc_float_status(8)
