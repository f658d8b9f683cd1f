"""What an installation must have; `make dist` tries the wheel itself, in an environment of its own (tools/smoke.py)."""

from __future__ import annotations

import importlib
import importlib.metadata
import tomllib

import pytest

import softnpu
import torch_npu
from tests import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def installed() -> str:
    """The version that pip installed; what a build leaves in the checkout has no record."""
    for distribution in importlib.metadata.distributions(name="softnpu"):
        if distribution.read_text("RECORD") is not None:
            return distribution.version
    pytest.skip("this checkout is on the path, but not installed")


def test_the_version_stands_in_one_place():
    assert "version" not in PROJECT["project"] and "version" in PROJECT["project"]["dynamic"]
    assert torch_npu.__version__.endswith(f"+softnpu{softnpu.__version__}")
    assert installed() == softnpu.__version__


@pytest.mark.parametrize("name", ["torch_npu", "torch-npu"])
def test_programs_that_ask_for_the_version_of_torch_npu_find_it(name):
    installed()
    assert importlib.metadata.version(name) == torch_npu.__version__


def test_license():
    assert PROJECT["project"]["license"] == "BSD-3-Clause"
    text = (ROOT / "LICENSE").read_text("utf-8")
    assert "BSD 3-Clause" in text and "Neither the name" in text


def test_every_package_is_typed():
    for package in ("softnpu", "torch_npu", "torchair"):
        assert (ROOT / "src" / package / "py.typed").exists()


def test_commands_lead_to_functions():
    for target in PROJECT["project"]["scripts"].values():
        module, name = target.split(":")
        assert callable(getattr(importlib.import_module(module), name))
