"""Shared by all tests: no banner, and the same random numbers for every test."""

from __future__ import annotations

import gc
import os

os.environ.setdefault("SOFTNPU_QUIET", "1")

import pytest
import torch

import torch_npu  # noqa: F401


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="module")
def _nothing_of_other_modules() -> None:
    """Garbage of the tests before is not freed while these count memory."""
    gc.collect()
