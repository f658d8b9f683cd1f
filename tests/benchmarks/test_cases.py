"""The cases: each has a name of its own, something to be held against, and a place on the page."""

from __future__ import annotations

import importlib
import re

import pytest

import torch_npu  # noqa: F401
from benchmarks import __main__ as command
from benchmarks import kernels, report

#: files whose cases make nothing before they run
FILES = (
    "arithmetic", "attention", "gemm", "growth", "kernels", "llama", "memory", "optimizers", "overhead", "resnet",
    "routing", "scaling",
)  # fmt: skip


@pytest.fixture(scope="module")
def cases():
    return [c for file in FILES for c in importlib.import_module(f"benchmarks.{file}").cases()]


def test_names_are_unique(cases):
    names = [(c.group, c.name) for c in cases]
    assert len(names) == len(set(names))


def test_every_case_is_held_against_something(cases):
    assert [c.name for c in cases if not c.versus()] == []


def test_fifty_small_operators(cases):
    assert sum(c.group == "small operators" for c in cases) == 50


def test_kernels_have_all_three_comparisons(cases):
    compared = [c for c in cases if c.group in {*kernels.GROUPS, "routing and sampling"}]
    assert len(compared) > 70
    assert all(set(c.versus()) == {"cpu", "inductor", "limit"} for c in compared)


def test_the_page_shows_groups_that_exist(cases):
    template = (report.HERE / "performance.md").read_text("utf-8")
    fields = set(re.findall(r"\{\{ (?:table|plot) (.*?) \}\}", template))
    # those of core.py make large tensors
    assert fields <= {c.group for c in cases} | {"half precision", "int8"}


def test_choosing_by_file_and_text():
    chosen = [c.name for c in command.chosen("kernels/npu_mish")]
    names = ("npu_mish", "npu_mish_backward")
    assert chosen == [f"{n}, {d}" for n in names for d in ("float32", "float16")]
