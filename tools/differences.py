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

import click

import torch_npu.ops

PAGE = Path(__file__).resolve().parent.parent / "docs" / "differences.md"
BEGIN = "<!-- generated from docstrings: make docs-generated -->"
END = "<!-- end of the generated part -->"


def paragraphs() -> Iterator[tuple[str, str, str]]:
    """(room, name, text) of every function or class of the rooms that states a difference."""
    for room in pkgutil.iter_modules(torch_npu.ops.__path__):
        if not room.ispkg:
            continue
        package = importlib.import_module(f"torch_npu.ops.{room.name}")
        for file in pkgutil.iter_modules(package.__path__):
            module = importlib.import_module(f"torch_npu.ops.{room.name}.{file.name}")
            for thing in vars(module).values():
                if getattr(thing, "__module__", None) == module.__name__ and _stated(thing):
                    yield room.name, _name(thing, file.name), _stated(thing)


def _stated(thing: object) -> str:
    text = inspect.cleandoc(getattr(thing, "__doc__", None) or "")
    found = re.search(
        r"^Differs from upstream:[ \n]*(.*?)(?=\n\n\S|\Z)", text, re.DOTALL | re.MULTILINE
    )
    said = " ".join(found[1].split()) if found else ""
    return said[:1].upper() + said[1:]


def _name(thing: object, file: str) -> str:
    """The operator's name: the class is it in camel case, unless it is a plain function."""
    from torch_npu.ops._registry import operators

    return next((o.name for o in operators.values() if o.definition is thing), file)


def generated() -> str:
    rooms: dict[str, list[str]] = {}
    for room, name, text in paragraphs():
        rooms.setdefault(room, []).append(f"- `{name}`: {text}")
    lines = [BEGIN, ""]
    for room, entries in sorted(rooms.items()):
        lines += [f"### {room}", "", *sorted(entries), ""]
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
