"""Shared by all tests: no banner, patient threads, and the same random numbers for every test."""

from __future__ import annotations

import collections
import gc
import os
import re
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

os.environ.setdefault("SOFTNPU_QUIET", "1")
# Processes share the cores: a thread that spins while it waits for its team takes them from the others.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest
import torch

import torch_npu  # noqa: F401
from softnpu import _C
from softnpu.python_versions import tomllib
from softnpu.torch_versions import numbers
from tests import ROOT
from torch_npu.npu._overflow import inf_nan_mode
from torch_npu.ops._registry import operators

EXCEPTIONS = tomllib.loads((ROOT / "tests" / "torch_exceptions.toml").read_text("utf-8")).get(
    "exception", []
)


#: what tests that take seconds do: they start processes, or compile
LONG = re.compile(
    r"subprocess|job\.run|forking|device\.process|plan\.programs|pytester|torch\.compile|get_npu_backend"
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What an older torch cannot do is expected to fail with it. Workers get the files in an order of our own."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        place = _places(collections.Counter(item.path for item in items))
        items.sort(key=lambda item: place[item.path])
    older = [each for each in EXCEPTIONS if numbers(torch.__version__) < numbers(each["before"])]
    for item in items:
        for each in older:
            if any(item.nodeid.startswith(start) for start in each["tests"]):
                item.add_marker(pytest.mark.xfail(reason=each["reason"], strict=True))


def _places(count: dict[Path, int]) -> dict[Path, float]:
    """No worker shall be left alone with a long file at the end, and few shall meet: every fifth file is a long one, until
    there are none left (`--no-loadscope-reorder` keeps this order)."""
    long = {path for path in count if LONG.search(path.read_text("utf-8"))}
    by_size = sorted(count, key=lambda path: -count[path])
    place = {path: 5.0 * n for n, path in enumerate(p for p in by_size if p in long)}
    return place | {path: 1.25 * n for n, path in enumerate(p for p in by_size if p not in long)}


def pytest_collection() -> None:
    """Thousands of tests are made, none of which is garbage: a fifth of the time would go to looking for some."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.enable()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _chip_of_the_operator(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test with an operator's name as its parameter runs on a chip that has the operator."""
    parameters = getattr(getattr(request.node, "callspec", None), "params", {})
    operator = operators.get(str(parameters.get("name")))
    with operator.on_its_chip() if operator else nullcontext():
        if operator and operator.chips is not None:
            _C.set_saturate(not inf_nan_mode())
        yield


@pytest.fixture
def own_segments() -> Iterator[None]:
    """Blocks of the test are cut from new segments: what other tests left behind decides neither sizes nor places."""
    with torch.npu.use_mem_pool(torch.npu.MemPool()):
        yield


@pytest.fixture(autouse=True, scope="module")
def _nothing_of_other_modules() -> None:
    """Garbage of the tests before is not freed while these count memory; what is left of them, and thousands of collected
    tests, is not looked through again by every collection that follows."""
    gc.collect()
    gc.freeze()
