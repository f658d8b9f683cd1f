"""What an installation must have; `make dist` tries the wheel itself, in an environment of its own (tools/smoke.py)."""

from __future__ import annotations

import importlib
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

import softnpu
import torch_npu
from softnpu.python_versions import tomllib
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


def build(tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Asks setup.py for the version; packages are those of the folder alone."""
    code = (
        f"import sys, runpy; sys.path[:] = [p for p in sys.path if 'site-packages' not in p] + [{str(tmp_path)!r}];"
        "sys.argv = ['setup.py', '--version']; runpy.run_path('setup.py', run_name='__main__')"
    )
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], cwd=ROOT, capture_output=True, text=True
    )


def test_a_build_without_torch_says_what_to_install(tmp_path):
    done = build(tmp_path)
    assert (
        done.returncode == 1 and "Install it first, for example: pip install torch==" in done.stderr
    )
    assert "Traceback" not in done.stderr


def test_a_build_with_an_unsupported_torch_names_the_supported_ones(tmp_path):
    for folder in ("setuptools/command", "torch/utils"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "setuptools" / "__init__.py").write_text(
        "Distribution = Extension = setup = object"
    )
    (tmp_path / "setuptools" / "command" / "__init__.py").write_text("")
    (tmp_path / "setuptools" / "command" / "build_ext.py").write_text("build_ext = object")
    (tmp_path / "torch" / "__init__.py").write_text("__version__ = '2.6.0+cpu'")
    (tmp_path / "torch" / "utils" / "__init__.py").write_text("")
    (tmp_path / "torch" / "utils" / "cpp_extension.py").write_text(
        "include_paths = library_paths = list"
    )
    done = build(tmp_path)
    assert done.returncode == 1, done.stderr
    assert "supports torch 2.7.1 to 2.14, but torch 2.6.0 is installed" in done.stderr
