"""docs/rules.md: the rules of the operators' `check` beside upstream's own checks, from api/rules.

Each folder of operators has a file there, with a table for each operator that somebody compared: the sources that were read,
and rules with the argument that each concerns and what became of it:

    kept      ours has a counterpart upstream (or `why` cites the page that states it)
    added     upstream has it, ours lacked it
    dropped   ours had it, upstream does not: taken out
    missing   upstream has it, ours does not (`why`)

A table with `as = "another"` has that operator's sources and those of its rules whose arguments it has, besides its own; a
`renamed` table there gives arguments other names.

Operators with a `check` and no table are counted as not yet compared.

python -m tools.rules
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

import torch_npu
from softnpu.python_versions import tomllib
from torch_npu.ops._registry import operators

ROOT = Path(__file__).resolve().parent.parent
FACTS = ROOT / "api" / "rules"
PAGE = ROOT / "docs" / "rules.md"
STATES = ("kept", "added", "dropped", "missing")
#: what a `check` enforces
ENFORCED = ("kept", "added")

INTRODUCTION = """\
# Rules

The constraints that an operator's `check` enforces, compared with the checks that the card's own software makes: CANN's
operator sources (op_host, op_api) first, op-plugin's host code second, upstream's pages third. A rule that the card does not
have is dropped here; a rule that only a page states is kept with the page cited. Generated from `api/rules` by
`make docs-generated`.
"""


def facts() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(FACTS.glob("*.toml")):
        found |= tomllib.loads(path.read_text("utf-8"))
    return {name: _whole(name, entry, found) for name, entry in found.items()}


def _whole(name: str, entry: dict[str, Any], all_: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The entry with what it takes from another operator's."""
    if "as" not in entry or name not in operators:
        return entry
    other = _whole(entry["as"], all_[entry["as"]], all_)
    renamed = entry.get("renamed", {})
    taken = [r | {"argument": renamed.get(r["argument"], r["argument"])} for r in other["rules"]]
    have = set(operators[name].arguments)
    rules = [r for r in taken if r["argument"] in have] + entry.get("rules", [])
    return {"sources": other["sources"] + entry.get("sources", []), "rules": rules}


def checked() -> dict[str, Any]:
    """The operators that have a `check` of their own, by name."""
    return {name: op for name, op in sorted(operators.items()) if "check" in op.parts}


def named_arguments(operator: Any) -> set[str]:
    """The arguments that the check and the functions it calls name in their messages."""
    words: set[str] = set()
    for function in _reached(operator.parts["check"]):
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        nodes = ast.walk(tree)
        words |= {
            n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)
        }
        kept = inspect.getclosurevars(function).nonlocals.values()  # of a check that a factory made
        words |= {w for w in kept if isinstance(w, str)}
    public = vars(sys.modules[operator.__module__]).get(
        "_NAMES", {}
    )  # of a version with other names
    return (words | {public[w] for w in words if w in public}) & set(operator.arguments)


def _reached(function: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """The function and the operators' helper functions that it calls, each once."""
    todo, seen = [function], set()
    while todo:
        found = todo.pop()
        if found in seen or not found.__module__.startswith("torch_npu.ops."):
            continue
        if found.__module__ == "torch_npu.ops._check":
            continue
        seen.add(found)
        yield found
        todo += [f for f in _called(found) if inspect.isfunction(f)]


def _called(function: Callable[..., Any]) -> Iterator[Any]:
    yield from inspect.getclosurevars(function).nonlocals.values()  # what a factory gave to it
    names = sys.modules[function.__module__].__dict__
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name):
            yield names.get(node.func.id)
        elif isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
            yield getattr(names.get(node.func.value.id), node.func.attr, None)


def problems() -> list[str]:
    """Where api/rules and the operators contradict each other."""
    found = []
    have = checked()
    for name, entry in facts().items():
        if name not in have:
            found.append(f"{name}: no operator of this name has a check")
            continue
        if not entry.get("sources"):
            found.append(f"{name}: no sources")
        for rule in entry["rules"]:
            if rule["state"] not in STATES:
                found.append(f"{name}: state {rule['state']!r}")
            if rule["state"] == "missing" and "why" not in rule:
                found.append(f"{name}: nothing says why {rule['rule']!r} is missing")
        enforced = {r["argument"] for r in entry["rules"] if r["state"] in ENFORCED}
        named = named_arguments(have[name])
        for argument in sorted(named - enforced):
            found.append(f"{name}: the rule of {argument!r} is not in api/rules")
        for argument in sorted(enforced - named):
            found.append(f"{name}: {argument!r} has rules in api/rules, but none in check")
    return found


def _entry(name: str, entry: dict[str, Any]) -> list[str]:
    lines = [f"### {name}", "", "Sources: " + "; ".join(f"`{s}`" for s in entry["sources"]) + "."]
    lines += ["", "| argument | rule | state |", "|---|---|---|"]
    for rule in entry["rules"]:
        state = rule["state"] + (f": {rule['why']}" if "why" in rule else "")
        lines.append(f"| `{rule['argument']}` | {rule['rule']} | {state} |")
    return [*lines, ""]


def page() -> str:
    have, compared = checked(), facts()
    states = Counter(rule["state"] for entry in compared.values() for rule in entry["rules"])
    open_ = [name for name in have if name not in compared]
    lines = [INTRODUCTION]
    lines.append(
        f"{len(have)} operators have a check; {len(compared)} of them have been compared, "
        f"{len(open_)} not yet. Rules of those compared: "
        + ", ".join(f"{states[state]} {state}" for state in STATES)
        + "."
    )
    lines += ["", "## Compared", ""]
    for name in sorted(compared):
        lines += _entry(name, compared[name])
    lines += ["## Not yet compared", ""]
    for folder in sorted({_folder(have[name]) for name in open_}):
        names = [f"`{name}`" for name in open_ if _folder(have[name]) == folder]
        lines += [f"- {folder}: " + ", ".join(names)]
    return "\n".join(lines) + "\n"


def _folder(operator: Any) -> str:
    return operator.__module__.removeprefix(f"{torch_npu.__name__}.ops.").split(".")[0]


@click.command(help=__doc__)
def main() -> None:
    PAGE.write_text(page(), "utf-8")


if __name__ == "__main__":
    main()
