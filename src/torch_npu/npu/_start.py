"""What happens once, when the device is first used: the banner, settings of ACL and the allocator, the overflow mode."""

from __future__ import annotations

import importlib

from softnpu import _C
from torch_npu import _register
from torch_npu.npu import _acl_init, _alloc_conf, _device, _overflow


def install() -> None:
    """Makes `_started` the device's start function, and errors of faults upstream's."""
    importlib.import_module("torch_npu.utils")  # a name of torch_npu from the start
    _C.on_start(_started)
    _C.set_error_text(_device.fault_text)


def _started() -> None:
    try:
        _acl_init.check_environment()
        _alloc_conf.from_environment()
        _C.set_saturate(not _overflow.inf_nan_mode())
    except (RuntimeError, ValueError) as error:
        # The device counts as started now: without this, only its first use would fail.
        for index in range(_C.device_count()):
            _C.fault_raise(index, str(error).splitlines()[0])
        raise
    _register.started()
    _device.run_queued_calls()
