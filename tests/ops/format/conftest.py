"""Private formats are switched on for a test that asks, and options are as before after each."""

import pytest
import torch

import torch_npu  # noqa: F401
from torch_npu.npu import _options
from torch_npu.ops._shared import _format_rules as _rules


@pytest.fixture(autouse=True)
def options_as_before():
    yield
    _options.reset()
    _rules._warned.clear()


@pytest.fixture
def internal():
    torch.npu.config.allow_internal_format = True
