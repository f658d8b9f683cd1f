"""Compares what stands here with what upstream documents: names, parameters and schemas. For tools/coverage.py."""

from __future__ import annotations

import ast
import enum
import importlib
import importlib.util
import inspect
import re
from typing import Any

MISSING = object()


def resolve(name: str) -> Any:
    """The object of a documented name, `MISSING` if there is none."""
    found = _by_attributes(name)
    return _by_modules(name) if found is MISSING else found


def _by_modules(name: str) -> Any:
    """Through the modules of the path, where a function of the same name hides one: contrib.function.roll.roll."""
    path = name.split(".")
    for depth in range(len(path) - 1, 1, -1):
        module = ".".join(path[:depth])
        try:
            thing: Any = importlib.import_module(module)
        except ModuleNotFoundError:
            continue
        for part in path[depth:]:
            thing = getattr(thing, part, MISSING)
        return thing
    return MISSING


def _by_attributes(name: str) -> Any:
    path = re.sub(r"\(\)", "", name).replace("torch.npu.npu.", "torch_npu.npu.").split(".")
    if not importlib.util.find_spec(path[0]):
        return MISSING
    thing: Any = importlib.import_module(path[0])
    for depth, part in enumerate(path[1:], 2):
        inner = inspect.getattr_static(thing, part, MISSING)
        if inner is MISSING and inspect.ismodule(thing) and hasattr(thing, "__path__"):
            module = ".".join(path[:depth])
            inner = importlib.import_module(module) if importlib.util.find_spec(module) else MISSING
        elif inner is MISSING:
            inner = getattr(thing, part, MISSING)
        if inner is MISSING:
            return MISSING
        thing = getattr(thing, part) if isinstance(inner, (staticmethod, classmethod)) else inner
    return thing


def difference(thing: Any, signature: str | None) -> str:
    """How the parameters of a callable differ from upstream's signature, "" if they do not."""
    if (
        signature is None or not callable(thing) or isinstance(thing, enum.EnumMeta)
    ):  # Python's, not upstream's
        return ""
    try:
        mine = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    want, have = _parameters(signature), _parameters(str(mine))
    if [n for n, _ in want] != [n for n, _ in have]:
        return f"the parameters are {_names(have)}, upstream has {_names(want)}"
    for (parameter, theirs), (_, ours) in zip(want, have, strict=True):
        if theirs != ours and "..." not in (theirs, ours):
            return f"the default of `{parameter}` is {ours or 'absent'}, upstream's is {theirs or 'absent'}"
    return ""


def schema_difference(name: str, wanted: list[str]) -> str:
    """Which of upstream's overloads the dispatcher lacks, by their parsed form."""
    import torch

    packet = getattr(torch.ops.npu, name, None)
    have = (
        {} if packet is None else {o: str(getattr(packet, o)._schema) for o in packet.overloads()}
    )
    for schema in wanted:
        parsed = parse(schema)
        overload = parsed.overload_name or "default"
        if overload not in have:
            return f"the overload `{overload}` is absent"
        if have[overload] != str(parsed):
            return f"the schema of `{overload}` is {have[overload]}, upstream has {parsed}"
    return ""


def parse(schema: str) -> Any:
    """An upstream schema as the dispatcher understands it: it knows a Dimname as str."""
    import torch

    qualified = schema if "::" in schema.partition("(")[0] else f"npu::{schema}"
    return torch._C.parse_schema(qualified.replace("Dimname ", "str "))


def _parameters(signature: str) -> list[tuple[str, str | None]]:
    """(name with its stars, default as text) of each parameter of a signature in text; annotations are left out."""
    text = re.sub(r"<[^<>]*>", "...", signature)
    function = ast.parse(f"def f{text}: pass").body[0]
    assert isinstance(function, ast.FunctionDef)
    arguments = function.args
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(arguments.defaults))
    found = [
        (a.arg, _text(d)) for a, d in zip(plain, [*defaults, *arguments.defaults], strict=True)
    ]
    if arguments.vararg:
        found.append((f"*{arguments.vararg.arg}", None))
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        found.append((argument.arg, _text(default)))
    if arguments.kwarg:
        found.append((f"**{arguments.kwarg.arg}", None))
    return found


def _text(default: ast.expr | None) -> str | None:
    return None if default is None else ast.unparse(default)


def _names(parameters: list[tuple[str, str | None]]) -> str:
    return "(" + ", ".join(n for n, _ in parameters) + ")"
