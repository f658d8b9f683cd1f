"""The stubs that editors read: fresh, complete, and typed as the schemas say."""

from __future__ import annotations

import ast
import importlib

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
PACKAGE, DEVICE = DECLARED


@pytest.mark.parametrize("path", stubs.PAGES, ids=lambda p: "/".join(p.parts[-2:]))
def test_a_stub_is_fresh(path):
    assert path.read_text("utf-8") == stubs.PAGES[path](), "run: make docs-generated"


def test_every_public_name_is_declared():
    public = {name for name in dir(torch_npu) if not name.startswith("_")} - {"testing"}
    assert public <= DECLARED[PACKAGE]
    assert {name for name in vars(torch.npu) if not name.startswith("_")} - {
        "annotations"
    } == DECLARED[DEVICE] - {"_"}


def test_what_is_declared_exists():
    private = {"_bool", "_Any", "_Generator", "_Tensor", "_device", "_"}
    assert all(hasattr(torch_npu, name) for name in DECLARED[PACKAGE] - private)
    assert importlib.import_module("torch.npu") is torch_npu.npu


def test_types_are_those_of_the_schema():
    text = PACKAGE.read_text("utf-8")
    assert (
        "def npu_rms_norm(self: _Tensor, gamma: _Tensor, epsilon: float = 1e-06) "
        "-> tuple[_Tensor, _Tensor]: ...\n"
    ) in text
    # A code of a data type is called bool, too: annotations must not mean it.
    assert "bool: int" in text and ": bool" not in text.replace("bool: int", "")
