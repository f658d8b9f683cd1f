"""A runtime of acl without handles, on device 0, for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import acl
import torch_npu  # noqa: F401
from acl import _device


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    _device.runtime.reset()
    assert acl.rt.set_device(0) == 0
    yield
    acl.rt.reset_device(0)
    _device.runtime.reset()
    torch.npu.set_device(0)
