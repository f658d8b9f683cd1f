"""Finds fakes of torch_npu, torch.npu and acl in a program, by its syntax tree."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

_FAKED = re.compile(r"^(torch_npu|acl|torch\.npu|torch\.version\.cann)(\.|$)")


@dataclass(frozen=True)
class Fake:
    line: int
    kind: str
    target: str


def find(text: str, name: str = "<text>") -> list[Fake]:
    """All fakes of a file, in its order, each once."""
    finder = _Finder()
    finder.visit(ast.parse(text, name))
    return sorted(set(finder.found), key=lambda fake: (fake.line, fake.target))


class _Finder(ast.NodeVisitor):
    def __init__(self) -> None:
        self.found: list[Fake] = []
        #: variable -> the module that it stands for: `fake = types.ModuleType("acl")`
        self.modules: dict[str, str] = {}

    def _add(self, node: ast.AST, kind: str, target: str | None) -> None:
        if target is not None and _FAKED.match(target):
            self.found.append(Fake(getattr(node, "lineno", 0), kind, target))

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._assigned(node, target, node.value)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._assigned(node, node.target, node.value)
        self.generic_visit(node)

    def _assigned(self, node: ast.AST, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            made = _made_module(value)
            if made is not None:
                self.modules[target.id] = made
        elif isinstance(target, ast.Subscript) and _dotted(target.value) == "sys.modules":
            self._add(node, "module in sys.modules", _text(target.slice))
        elif isinstance(target, ast.Attribute):
            path = self._path(target)
            if path is not None and not target.attr.startswith("__"):
                self._add(node, "attribute", path)

    def _path(self, node: ast.expr) -> str | None:
        """The dotted name, with variables and sys.modules["x"] replaced by the modules that they stand for."""
        if isinstance(node, ast.Attribute):
            inner = self._path(node.value)
            return None if inner is None else f"{inner}.{node.attr}"
        if isinstance(node, ast.Name):
            return self.modules.get(node.id, node.id)
        if isinstance(node, ast.Subscript) and _dotted(node.value) == "sys.modules":
            return _text(node.slice)
        return None

    def visit_Call(self, node: ast.Call) -> None:
        called = _dotted(node.func) or ""
        short = called.rpartition(".")[2]
        first = node.args[0] if node.args else None
        second = node.args[1] if len(node.args) > 1 else None
        if called.endswith("patch.dict") or short == "update" and "sys.modules" in called:
            table = second if called.endswith("patch.dict") else first
            where = (
                _dotted(first) or _text(first) if called.endswith("patch.dict") else "sys.modules"
            )
            if where == "sys.modules":
                for key in _keys(table):
                    self._add(node, "module in sys.modules", key)
        elif called == "sys.modules.setdefault":
            self._add(node, "module in sys.modules", _text(first))
        elif short == "setitem" and _dotted(first) == "sys.modules":
            self._add(node, "module in sys.modules", _text(second))
        elif (
            short == "object" and called.endswith("patch.object") or short in ("setattr", "delattr")
        ):
            self._patched_object(node, short, first, second)
        elif short in ("patch", "multiple") and _text(first) is not None:
            self._add(node, "patch", _text(first))
        elif short == "rename_privateuse1_backend" and _text(first) == "npu":
            self.found.append(Fake(node.lineno, "rename of the backend", "torch.npu"))
        self.generic_visit(node)

    def _patched_object(
        self, node: ast.Call, short: str, first: ast.expr | None, second: ast.expr | None
    ) -> None:
        text = _text(first)
        if text is not None and "." in text:  # monkeypatch.setattr("torch_npu.x", ...)
            self._add(node, "patch", text)
        elif first is not None and _text(second) is not None:
            path = self._path(first)
            if path is not None:
                kind = "attribute" if isinstance(node.func, ast.Name) else "patch"
                # `module.torch_npu`, where a module under test imported it
                path = re.sub(r"^.*?\.(?=(torch_npu|torch\.npu|acl)(\.|$))", "", path)
                self._add(node, kind, f"{path}.{_text(second)}")


def _made_module(value: ast.expr) -> str | None:
    """The name in `types.ModuleType("acl")`; a MagicMock is a module only where it is stored as one."""
    if isinstance(value, ast.Call) and (_dotted(value.func) or "").endswith("ModuleType"):
        return _text(value.args[0]) if value.args else None
    if isinstance(value, ast.Subscript) and _dotted(value.value) == "sys.modules":
        return _text(value.slice)
    return None


def _dotted(node: ast.expr | None) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = _dotted(node.value)
        return None if inner is None else f"{inner}.{node.attr}"
    return None


def _text(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _keys(node: ast.expr | None) -> Iterator[str]:
    if isinstance(node, ast.Dict):
        yield from (text for text in map(_text, node.keys) if text is not None)
