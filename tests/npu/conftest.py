"""Every test leaves the device as it found it: no faults, no options, no observers."""

import pytest

import torch_npu  # noqa: F401
from softnpu import _C, faults
from torch_npu.npu import _options


@pytest.fixture(autouse=True)
def clean_device():
    yield
    faults.clear()
    _options.reset()
    _C.set_unsafe(False)
    _C.set_saturate(False)
    _C.set_sync_debug_mode(0)
    _C.set_device(0)


@pytest.fixture
def saturation(monkeypatch):
    """The saturation mode, as INF_NAN_MODE_FORCE_DISABLE=1 sets it at the start."""
    monkeypatch.setenv("INF_NAN_MODE_FORCE_DISABLE", "1")
    _C.set_saturate(True)
    _C.clear_overflow_flag(0)
    yield
    _C.clear_overflow_flag(0)
