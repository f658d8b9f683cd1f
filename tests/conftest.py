"""Shared by all tests: no banner, and the same random numbers for every test."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import nullcontext

os.environ.setdefault("SOFTNPU_QUIET", "1")

import pytest
import torch

import torch_npu  # noqa: F401
from torch_npu.ops._registry import operators


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _chip_of_the_operator(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test with an operator's name as its parameter runs on a chip that has the operator."""
    parameters = getattr(getattr(request.node, "callspec", None), "params", {})
    operator = operators.get(str(parameters.get("name")))
    with operator.on_its_chip() if operator else nullcontext():
        yield


@pytest.fixture(autouse=True, scope="module")
def _nothing_of_other_modules() -> None:
    """Garbage of the tests before is not freed while these count memory."""
    gc.collect()
