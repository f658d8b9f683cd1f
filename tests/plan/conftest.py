from __future__ import annotations

import pytest

import torch_npu


@pytest.fixture
def planned():
    """A run for shapes alone, while the test lasts."""
    torch_npu._plan.start()
    yield
    torch_npu._plan.stop()
