"""The generated part of docs/differences.md: the "Differs from upstream" paragraphs of the operators' docstrings.

python -m tools.differences
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import click

import torch_npu
from torch_npu.ops._registry import operators

PAGE = Path(__file__).resolve().parent.parent / "docs" / "differences.md"
BEGIN = "<!-- generated from docstrings: make docs-generated -->"
END = "<!-- end of the generated part -->"


def paragraphs() -> Iterator[tuple[str, str, str]]:
    """(package, name, text) of every module, class and function that states a difference."""
    for module in _modules():
        package, _, file = module.__name__.removeprefix("torch_npu.").rpartition(".")
        own = [
            t for t in vars(module).values() if getattr(t, "__module__", None) == module.__name__
        ]
        for thing in [module, *own]:
            text = _stated(thing)
            if text:
                yield package or file, _name(thing, file), text


def _modules() -> Iterator[ModuleType]:
    """The operators' files, then the other packages' (private ones too: a reader meets what they do)."""
    for found in pkgutil.walk_packages(torch_npu.__path__, "torch_npu."):
        if not found.name.endswith("__main__"):
            module = importlib.import_module(found.name)
            if found.name.endswith("transfer_to_npu"):
                module.disable()  # importing it switched it on
            yield module


def _stated(thing: object) -> str:
    text = inspect.cleandoc(getattr(thing, "__doc__", None) or "")
    pattern = r"^Differs from upstream:[ \n]*(.*?)(?=\n\n\S|\Z)"
    found = re.search(pattern, text, re.DOTALL | re.MULTILINE)
    said = " ".join(found[1].split()) if found else ""
    return said[:1].upper() + said[1:]


def _name(thing: object, file: str) -> str:
    """The operator's name, a function's own, or the file's for what is private."""
    operator = next((o.name for o in operators.values() if o is thing), "")
    own = getattr(thing, "__qualname__", "_")
    return operator or (file.lstrip("_") if own.startswith("_") else own)


def generated() -> str:
    packages: dict[str, list[str]] = {}
    for package, name, text in paragraphs():
        packages.setdefault(package, []).append(f"- `{name}`: {text}")
    lines = [BEGIN, ""]
    for package, entries in sorted(packages.items()):
        lines += [f"### {package.replace('.', ', ')}", "", *sorted(set(entries)), ""]
    return "\n".join([*lines, END])


def page() -> str:
    """The whole page: what people wrote, with the generated part brought up to date."""
    text = PAGE.read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + generated() + after


@click.command(help=__doc__)
def main() -> None:
    PAGE.write_text(page(), "utf-8")


if __name__ == "__main__":
    main()
