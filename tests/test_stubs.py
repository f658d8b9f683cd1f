"""The stubs that editors read: fresh, complete, and typed as the schemas say."""

from __future__ import annotations

import ast
import importlib
import inspect

import pytest
import torch

import torch_npu
from tools import stubs

DECLARED = {
    path: {
        name
        for node in ast.parse(path.read_text("utf-8")).body
        for name in (
            [alias.asname or alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom)
            else [node.target.id]
            if isinstance(node, ast.AnnAssign)
            else [getattr(node, "name", "_")]
        )
    }
    for path in stubs.PAGES
    if path.suffix == ".pyi"
}
PACKAGE, DEVICE, RUNTIME, FUNCTIONAL = DECLARED


@pytest.mark.parametrize("path", stubs.PAGES, ids=lambda p: "/".join(p.parts[-2:]))
def test_a_stub_is_fresh(path):
    assert path.read_text("utf-8") == stubs.PAGES[path](), "run: make docs-generated"


def test_every_public_name_is_declared():
    public = {name for name in dir(torch_npu) if not name.startswith("_")} - {
        "testing",
        "op_plugin",
        "jit",
    }
    assert public <= DECLARED[PACKAGE]
    assert {name for name in vars(torch.npu) if not name.startswith("_")} - {
        "annotations"
    } == DECLARED[DEVICE] - {"_"}
    assert DECLARED[DEVICE] - {"_"} <= DECLARED[RUNTIME]


def test_what_is_declared_exists():
    private = {"_bool", "_Any", "_Generator", "_Tensor", "_device", "_"}
    assert all(hasattr(torch_npu, name) for name in DECLARED[PACKAGE] - private)
    assert all(hasattr(torch_npu.npu, name) for name in DECLARED[RUNTIME] - private)
    assert importlib.import_module("torch.npu") is torch_npu.npu


def test_torch_reaches_the_device_through_a_module_that_it_takes_names_from():
    """A checker that reads `import torch` sees torch.npu; `make dist` lets mypy read tests/typed_program.py."""
    assert "from torch.functional import *" in inspect.getsource(torch)
    assert DECLARED[FUNCTIONAL] >= {*torch.functional.__all__, "npu"}
    assert f"__all__ = {[*sorted(torch.functional.__all__), 'npu']}" in FUNCTIONAL.read_text(
        "utf-8"
    )


def test_types_are_those_of_the_schema():
    text = PACKAGE.read_text("utf-8")
    assert (
        "def npu_rms_norm(self: _Tensor, gamma: _Tensor, epsilon: float = 1e-06) "
        "-> tuple[_Tensor, _Tensor]: ...\n"
    ) in text
    # A code of a data type is called bool, too: annotations must not mean it.
    assert "bool: int" in text and ": bool" not in text.replace("bool: int", "")
