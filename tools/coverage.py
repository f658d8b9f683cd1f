"""docs/coverage.md: which of upstream's public names work here, found by introspection.

  python -m tools.coverage [--check | --prune]

api/upstream.json holds the names and signatures, api/op_schemas.json the operators' schemas, api/exceptions.toml
what is absent or partial and why. Nothing here is typed by hand but those reasons.
"""

from __future__ import annotations

import ast
import collections
import enum
import functools
import importlib
import importlib.util
import inspect
import json
import re
import sys
import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "coverage.md"
EXCEPTIONS = ROOT / "api" / "exceptions.toml"
_MISSING = object()


@dataclass(frozen=True)
class Entry:
    """One documented name: what upstream says of it and what stands here."""

    name: str
    table: str
    signature: str | None
    found: bool
    differs: str  # how its signature or schema differs, "" if it does not

    @property
    def status(self) -> str:
        if not self.found:
            return "absent"
        return "partial" if self.differs or reason("partial", self.name) else "works"

    @property
    def note(self) -> str:
        kinds = ("partial", "signature") if self.found else ("absent",)
        return "; ".join(filter(None, (reason(k, self.name) for k in kinds))) or self.differs


@functools.cache
def upstream() -> dict[str, Any]:
    return json.loads((ROOT / "api" / "upstream.json").read_text("utf-8"))


@functools.cache
def schemas() -> dict[str, list[str]]:
    """Operator name -> upstream's schemas, all overloads."""
    return json.loads((ROOT / "api" / "op_schemas.json").read_text("utf-8"))


@functools.cache
def exceptions() -> dict[str, dict[str, str]]:
    """{"absent" | "partial" | "signature": {name or pattern: reason}}."""
    return tomllib.loads(EXCEPTIONS.read_text("utf-8"))


def reason(kind: str, name: str) -> str:
    """Why a name is absent or partial; a pattern such as `torchair.*` covers many."""
    table = exceptions().get(kind, {})
    return table.get(name) or next(
        (r for p, r in table.items() if "*" in p and fnmatchcase(name, p)), ""
    )


def seeds() -> list[Entry]:
    """The documented names, in the order of the documentation."""
    return [
        _entry(name, fact["table"], fact.get("signature"))
        for name, fact in upstream()["seeds"].items()
    ]


def others() -> list[Entry]:
    """Upstream's other public names; the table is the module."""
    found = []
    for name, signature in upstream()["others"].items():
        parts = name.split(".")
        found.append(_entry(name, ".".join(parts[:2]) if len(parts) > 2 else parts[0], signature))
    return found


def missing() -> list[str]:
    """Documented names that are neither here nor excused, or that have another form."""
    bad = []
    for entry in seeds():
        if not entry.found and not entry.note:
            bad.append(f"{entry.name} is missing and api/exceptions.toml does not say why")
        if entry.differs and not reason("signature", entry.name):
            bad.append(f"{entry.name}: {entry.differs}")
    return bad


def stale() -> dict[str, list[str]]:
    """Exceptions that no longer hold: the name works, or upstream has no such name."""
    entries = {e.name: e for e in [*seeds(), *others()]}
    old: dict[str, list[str]] = {}
    for kind, table in exceptions().items():
        for pattern in table:
            covered = [e for n, e in entries.items() if n == pattern or fnmatchcase(n, pattern)]
            gone = {
                "absent": all(e.found for e in covered),
                "signature": not any(e.differs for e in covered),
            }
            if not covered or gone.get(kind):
                old.setdefault(kind, []).append(pattern)
    return old


def _entry(name: str, table: str, signature: str | None) -> Entry:
    thing = resolve(name)
    found = thing is not _MISSING
    return Entry(
        name, table, signature, found, _difference(name, thing, signature) if found else ""
    )


def resolve(name: str) -> Any:
    """The object of a documented name, `_MISSING` if there is none."""
    path = re.sub(r"\(\)", "", name).replace("torch.npu.npu.", "torch_npu.npu.").split(".")
    if not importlib.util.find_spec(path[0]):
        return _MISSING
    thing: Any = importlib.import_module(path[0])
    for depth, part in enumerate(path[1:], 2):
        inner = inspect.getattr_static(thing, part, _MISSING)
        if inner is _MISSING and inspect.ismodule(thing) and hasattr(thing, "__path__"):
            module = ".".join(path[:depth])
            inner = (
                importlib.import_module(module) if importlib.util.find_spec(module) else _MISSING
            )
        elif inner is _MISSING:
            inner = getattr(thing, part, _MISSING)
        if inner is _MISSING:
            return _MISSING
        thing = getattr(thing, part) if isinstance(inner, (staticmethod, classmethod)) else inner
    return thing


def _difference(name: str, thing: Any, signature: str | None) -> str:
    module, _, plain = name.rpartition(".")
    if module == "torch_npu" and plain in schemas():
        return _schema_difference(plain)
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


def _schema_difference(name: str) -> str:
    """Which of upstream's overloads the dispatcher lacks, by their parsed form."""
    import torch

    packet = getattr(torch.ops.npu, name, None)
    have = (
        {} if packet is None else {o: str(getattr(packet, o)._schema) for o in packet.overloads()}
    )
    for schema in schemas()[name]:
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

    return torch._C.parse_schema(f"npu::{schema}".replace("Dimname ", "str "))


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


# --- the page -------------------------------------------------------------------------------------------


def render() -> str:
    documented, rest = seeds(), others()
    lines = [
        "# Coverage of upstream's public names",
        "",
        "Generated by `make docs-generated`; a test fails when this page is stale. *works*: the name is here with",
        "upstream's signature (operators: schema), and tests cover its behaviour; *partial* and *absent*: see the note.",
        "",
        *_summary("Documented names", "table", documented),
        *_summary("Other public names", "module", rest),
    ]
    for table, entries in _grouped(documented).items():
        lines += [f"## {table}", "", "| name | state | note |", "|---|---|---|"]
        lines += [f"| `{e.name}` | {e.status} | {_cell(e.note)} |" for e in entries] + [""]
    lines += ["## Other public names that are absent", ""]
    for module, entries in _grouped([e for e in rest if not e.found]).items():
        names = ", ".join(f"`{e.name.removeprefix(module + '.')}`" for e in entries)
        lines += [
            "<details>",
            f"<summary>{module}: {len(entries)}</summary>",
            "",
            names,
            "",
            "</details>",
            "",
        ]
    return "\n".join(lines)


def _summary(title: str, group: str, entries: list[Entry]) -> list[str]:
    lines = [
        f"## {title}",
        "",
        f"| {group} | works | partial | absent | all |",
        "|---|--:|--:|--:|--:|",
    ]
    total: collections.Counter[str] = collections.Counter()
    for table, members in _grouped(entries).items():
        counts = collections.Counter(e.status for e in members)
        total += counts
        lines.append(f"| {table} | {_numbers(counts)} |")
    return [*lines, f"| **all** | {_numbers(total)} |", ""]


def _numbers(counts: collections.Counter[str]) -> str:
    return " | ".join(
        str(n) for n in (counts["works"], counts["partial"], counts["absent"], counts.total())
    )


def _grouped(entries: list[Entry]) -> dict[str, list[Entry]]:
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(entry.table, []).append(entry)
    return groups


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def prune() -> None:
    """Takes the stale lines out of api/exceptions.toml."""
    old = {json.dumps(name) for names in stale().values() for name in names}
    lines = EXCEPTIONS.read_text("utf-8").splitlines(keepends=True)
    kept = [x for x in lines if x.partition(" = ")[0] not in old]
    EXCEPTIONS.write_text("".join(kept), "utf-8")
    exceptions.cache_clear()
    print(f"{len(lines) - len(kept)} stale exceptions removed")


@click.command(help=__doc__)
@click.option("--check", is_flag=True, help="Only say whether the page is stale; exit 1 if it is.")
@click.option(
    "--prune", "drop", is_flag=True, help="Take stale lines out of api/exceptions.toml first."
)
def main(check: bool, drop: bool) -> None:
    if drop:
        prune()
    page = render()
    for line in missing():
        print(line, file=sys.stderr)
    if check:
        sys.exit(int(not PAGE.exists() or PAGE.read_text("utf-8") != page))
    PAGE.write_text(page, "utf-8")


if __name__ == "__main__":
    main()
