"""torch.npu: which devices there are and what they can do."""

import warnings

import pytest
import torch

import torch_npu
from softnpu import _C, chips, settings
from tests.device.process import output


def test_name_and_properties_are_the_chips():
    properties = torch.npu.get_device_properties()
    assert torch.npu.get_device_name() == properties.name == chips.current().name
    assert properties.total_memory == torch.npu.mem_get_info()[1]
    assert (properties.cube_core_num, properties.vector_core_num) == (20, 40)
    assert properties.emulated is True


@pytest.mark.parametrize("name", ["get_device_name", "get_device_properties", "utilization"])
def test_a_device_that_is_not_there(name):
    with pytest.raises(AssertionError, match="Invalid device id 99"):
        getattr(torch.npu, name)(99)
    with pytest.raises(ValueError, match="Expected a npu device, but got: cpu"):
        getattr(torch.npu, name)("cpu")


def test_device_contexts_restore_and_ignore_negative():
    with torch.npu.device("npu:3"):
        assert torch.npu.current_device() == 3
        with torch.npu.device(-1):
            assert torch.npu.current_device() == 3
        with torch.npu.device(None):
            assert torch.npu.current_device() == 3
    assert torch.npu.current_device() == 0


def test_device_of_follows_the_tensor():
    with torch.npu.device_of(torch.ones(1, device="npu:2")):
        assert torch.npu.current_device() == 2
    with torch.npu.device_of(torch.ones(1)):
        assert torch.npu.current_device() == 0


def test_set_device_takes_every_form_and_refuses_others():
    torch.npu.set_device("npu:1")
    assert torch.npu.current_device() == 1
    torch.npu.set_device(-1)
    assert torch.npu.current_device() == 1
    torch.npu.set_device(torch.device("npu", 0))
    assert torch.npu.current_device() == 0
    with pytest.raises(TypeError, match="expected an npu device"):
        torch.npu.set_device(1.5)
    beyond = torch.npu.device_count()
    with pytest.raises(RuntimeError, match=f"device index {beyond}:.*Check whether the device ID"):
        torch.npu.set_device(beyond)


def test_peer_access():
    assert torch.npu.can_device_access_peer(0, 1) is True
    assert torch.npu.can_device_access_peer(1, 1) is False
    with pytest.raises(AssertionError, match="Invalid peer device id: 9"):
        torch.npu.can_device_access_peer(0, 9)
    with pytest.raises(AssertionError, match="Invalid device id: -1"):
        torch.npu.can_device_access_peer(-1, 0)


def test_capability_is_none_unless_the_environment_gives_one(monkeypatch):
    monkeypatch.delenv("TORCH_NPU_DEVICE_CAPABILITY", raising=False)
    with pytest.warns(UserWarning, match="TORCH_NPU_DEVICE_CAPABILITY"):
        assert torch.npu.get_device_capability() is None
    monkeypatch.setenv("TORCH_NPU_DEVICE_CAPABILITY", "8.0")
    with pytest.warns(UserWarning, match="describes no NPU"):
        assert torch.npu.get_device_capability(0) == (8, 0)
    monkeypatch.setenv("TORCH_NPU_DEVICE_CAPABILITY", "eight")
    with pytest.warns(UserWarning, match="'eight'"):
        assert torch.npu.get_device_capability() is None


def test_utilization_is_a_percentage():
    torch.npu.utilization()
    torch.ones(500, 500, device="npu") @ torch.ones(500, 500, device="npu")
    assert 0 <= torch.npu.utilization() <= 100
    assert isinstance(torch.npu.utilization(), int)


def test_blas_handle_is_none_with_a_warning():
    with pytest.warns(UserWarning, match="blas handle"):
        assert torch.npu.current_blas_handle() is None


def test_soc_and_bf16():
    assert torch.npu.get_soc_version() == 223
    assert torch.npu.is_bf16_supported() is True


def test_sync_debug_mode_warn_and_error():
    """A wait for a stream, be it inside a copy; not that for a device or an event."""
    x, event = torch.ones(2, device="npu"), torch.npu.Event()
    event.record()
    torch.npu.set_sync_debug_mode("warn")
    assert torch.npu.get_sync_debug_mode() == 1
    with pytest.warns(UserWarning, match="called a synchronizing NPU operation"):
        torch.npu.current_stream().synchronize()
    torch.npu.set_sync_debug_mode(2)
    torch.npu.synchronize()
    event.synchronize()
    for call in (x.sum().item, torch.npu.current_stream().synchronize):
        with pytest.raises(RuntimeError, match="called a synchronizing NPU operation"):
            call()
    torch.npu.set_sync_debug_mode("default")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.npu.synchronize()


@pytest.mark.parametrize("wrong", ["loud", 3, -1, True])
def test_sync_debug_mode_refuses(wrong):
    with pytest.raises(RuntimeError, match="invalid value of debug_mode"):
        torch.npu.set_sync_debug_mode(wrong)


def test_a_fresh_process():
    """Statistics before the first use, calls that wait for it, and the core limit that can be set once."""
    code = """
        import torch, torch_npu
        print(torch.npu.memory_stats(), torch.npu.memory_allocated())
        seen = []
        torch.npu._lazy_call(lambda: seen.append(torch.npu.is_initialized()))
        print(seen, torch.npu.is_initialized())
        torch.ones(1, device="npu")
        print(seen, torch.npu.is_initialized())
        torch.npu._lazy_call(lambda: seen.append("now"))
        print(seen)
        torch.npu.set_device_limit(0, 5, 10)
        print(torch.npu.get_device_limit(0), torch.npu.get_stream_limit(torch.npu.current_stream()))
        try:
            torch.npu.set_device_limit(0, 6)
        except RuntimeError as error:
            print("already been called" in str(error))
    """
    assert output(code).splitlines() == [
        "OrderedDict() 0",
        "[] False",
        "[True] True",
        "[True, 'now']",
        "{'cube_core_num': 5, 'vector_core_num': 10} {'cube_core_num': 5, 'vector_core_num': 10}",
        "True",
    ]
    with pytest.raises(TypeError, match="device must be an int, but got str"):
        torch.npu.get_device_limit("npu:0")


def test_op_timeout():
    torch.npu.set_op_timeout_ms(1000)
    assert torch_npu.npu.utils.op_timeout_ms == 1000
    with pytest.raises(RuntimeError, match="positive number of milliseconds, but received 0"):
        torch.npu.set_op_timeout_ms(0)
    with pytest.raises(TypeError, match="timeout must be an int"):
        torch.npu.set_op_timeout_ms("1s")


def test_core_limits_of_streams():
    stream = torch.npu.Stream()
    full = torch.npu.get_device_limit(0)
    assert full == {"cube_core_num": 20, "vector_core_num": 40}
    assert torch.npu.get_stream_limit(stream) == full
    torch.npu.set_stream_limit(stream, cube_num=4)
    assert torch.npu.get_stream_limit(stream) == {"cube_core_num": 4, "vector_core_num": 40}
    torch.npu.set_stream_limit(stream, vector_num=8)
    assert torch.npu.get_stream_limit(stream) == {"cube_core_num": 4, "vector_core_num": 8}
    torch.npu.reset_stream_limit(stream)
    assert torch.npu.get_stream_limit(stream) == full
    with pytest.raises(RuntimeError, match="cube_num must be from 1 to 20, but got 21"):
        torch.npu.set_stream_limit(stream, cube_num=21)
    with pytest.raises(AssertionError, match="stream cannot be None"):
        torch.npu.get_stream_limit(None)
    with pytest.raises(AssertionError, match="stream should be torch_npu.npu.Stream"):
        torch.npu.reset_stream_limit(1)


def test_cann_version_compares():
    later = torch_npu.npu.utils._is_gte_cann_version
    with settings.override(cann_version="9.0.0"):
        assert torch_npu.utils.get_cann_version() == "9.0.0"
        assert later("8.5.0") and later("9.0.0") and later("9.0.0.RC1") and later("9.0.0.alpha003")
        assert not later("9.0.1") and not later("10.0.0.RC1")
    with pytest.raises(ValueError, match="module must be one of CANN"):
        torch_npu.utils.get_cann_version("KERNEL")
    with pytest.raises(ValueError, match="such as 8.5.0"):
        later("new")


def test_host_functions_run_in_stream_order():
    stream, seen = torch.npu.Stream(), []
    with pytest.raises(RuntimeError, match="_subscribe_report"):
        torch.npu._launch_host_func(stream, seen.append, 1)
    torch.npu._subscribe_report(stream)
    torch.npu._launch_host_func(stream, seen.append, 2)
    torch.npu._unsubscribe_report(stream)
    assert seen == [2]
    with pytest.raises(TypeError, match="must be a torch_npu.npu.Stream"):
        torch.npu._subscribe_report(0)


def test_sleep_keeps_the_stream_busy():
    start, end = (torch.npu.Event(enable_timing=True) for _ in range(2))
    start.record()
    torch.npu._sleep(5_000_000)
    end.record()
    assert start.elapsed_time(end) >= 5
    with pytest.raises(TypeError, match="number of cycles"):
        torch.npu._sleep(-1)


def test_no_device_at_all():
    code = """
        import torch, torch_npu
        print(torch.npu.is_available(), torch.npu.device_count(), torch.npu.default_generators)
        torch.npu.manual_seed(1)
        torch.npu.manual_seed_all(1)
    """
    assert output(code, SOFTNPU="0") == "False 0 ()"
    assert _C.device_count() == 8
