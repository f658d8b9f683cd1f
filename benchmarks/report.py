"""docs/performance.md with its tables and plots, from the file of a run.

python -m benchmarks.report FILE.json [--strict]

The prose is `performance.md` beside this file. There `{{ machine }}` and `{{ summary }}` stand for sentences,
`{{ table GROUP }}` and `{{ plot GROUP }}` for what they say, `{{ rest }}` for the tables of all other groups,
`{{ missed }}` for the goals that were not met, with the reasons of `reasons.toml`. Within a sentence
`{{ ours NAME }}`, `{{ theirs NAME | VERSUS }}` and `{{ ratio NAME | VERSUS }}` are numbers of the run.
"""

from __future__ import annotations

import re
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import click

from benchmarks import plot, record, table
from benchmarks.harness import Row, means, misses
from softnpu.python_versions import tomllib

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
_FIELD = re.compile(r"\{\{ *(\w+) *([^}]*?) *\}\}")
_ABSENT = "n/a"


class Page:
    """The template filled with one run; `plots` are the files it refers to, by name."""

    def __init__(
        self, about: dict[str, Any], rows: list[Row], reasons: list[dict[str, str]]
    ) -> None:
        self.about, self.reasons = about, reasons
        self.rows = [*rows, *means(rows)]
        self.groups = dict(table.groups(rows))
        self.plots: dict[str, str] = {}
        self.shown: set[str] = set()
        self.unexplained: list[str] = []

    def fill(self, template: str) -> str:
        named = [m[2] for m in _FIELD.finditer(template) if m[1] == "table"]
        self.shown |= set(named)
        return _FIELD.sub(lambda m: getattr(self, f"_{m[1]}")(m[2]), template)

    def _machine(self, _: str) -> str:
        a, versions = self.about, self.about["versions"]
        listed = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
        return (
            f"{a['cpu']} with {a['cores']} cores ({a['threads']} threads used), {a['memory_gib']} GiB, "
            f"{a['capability']}; features: {', '.join(a['features'])}. It copies {a['copy_gb_per_s']} GB/s and "
            f"multiplies {a['fp32_gflop_per_s']} GFLOP/s in fp32. Load when the run began: {a['load']:.1f}. "
            f"Measured {a['date']} with {listed}."
        )

    def _summary(self, _: str) -> str:
        verdicts = [a.met for r in self.rows for a in r.versus.values() if a.met is not None]
        cases = sum(1 for r in self.rows if r.rounds or r.error)
        wrong = sum(1 for r in self.rows if r.error)
        failed = f" {wrong} cases failed." if wrong else ""
        return f"{cases} cases; {sum(verdicts)} of {len(verdicts)} goals met.{failed}"

    def _table(self, group: str) -> str:
        rows = self.groups.get(group)
        return _ABSENT if rows is None else table.markdown(rows) + self._notes(rows)

    def _notes(self, rows: list[Row]) -> str:
        """How things were measured, each remark once."""
        said: dict[str, list[str]] = {}
        for row in rows:
            for name, against in row.versus.items():
                if against.note:
                    said.setdefault(f"{name}: {against.note}", []).append(row.name)
        shared = [note for note, names in said.items() if len(names) > 1]
        own = [f"{note} ({names[0]})" for note, names in said.items() if len(names) == 1]
        remarks = [*shared, *own]
        return "\n\n" + "; ".join(remarks) + "." if remarks else ""

    def _plot(self, group: str) -> str:
        rows = self.groups.get(group)
        if rows is None:
            return _ABSENT
        name = re.sub(r"\W+", "-", group.lower()).strip("-") + ".svg"
        self.plots[name] = plot.svg(group, [r for r in rows if r.rounds])
        return f"![{group}: our time by theirs](performance/{name})"

    def _rest(self, _: str) -> str:
        left = [g for g in self.groups if g not in self.shown]
        return "\n\n".join(f"### {g}\n\n{self._table(g)}" for g in left)

    def _missed(self, _: str) -> str:
        """What failed, and each reason with the cases that it is about."""
        wrong: list[str] = []
        missed: dict[str, list[str]] = {}
        for row, name in misses(self.rows):
            where = f"{row.group}, {row.name}"
            if not name:
                wrong.append(f"- {where}: {row.error}")
                continue
            against = row.versus[name]
            told = f"{where}: {against.ratio:.3g} by {name}, the goal is {against.goal}"
            missed.setdefault(self._why(where, name), []).append(f"- {told}")
        parts = ["\n".join(wrong)] if wrong else []
        parts += [f"{reason}\n\n" + "\n".join(cases) for reason, cases in missed.items()]
        return "\n\n".join(parts) or "None."

    def _why(self, where: str, name: str) -> str:
        for reason in self.reasons:
            if fnmatchcase(where, reason["case"]) and reason.get("versus", name) == name:
                return _FIELD.sub(lambda m: getattr(self, f"_{m[1]}")(m[2]), reason["text"])
        self.unexplained.append(f"{where}, by {name}")
        return "Not explained."

    def _ours(self, name: str) -> str:
        row = self._row(name)
        return _ABSENT if row is None else table.quantity(row.value, row.unit)

    def _theirs(self, text: str) -> str:
        row, name = self._pair(text)
        return _ABSENT if row is None else table.quantity(row.versus[name].value, row.unit)

    def _ratio(self, text: str) -> str:
        row, name = self._pair(text)
        return _ABSENT if row is None else f"{row.versus[name].ratio:.3g}"

    def _pair(self, text: str) -> tuple[Row | None, str]:
        case, name = (part.strip() for part in text.split("|"))
        row = self._row(case)
        return (row if row is not None and name in row.versus else None), name

    def _row(self, name: str) -> Row | None:
        return next((r for r in self.rows if r.name == name and not r.error), None)


def reasons() -> list[dict[str, str]]:
    return tomllib.loads((HERE / "reasons.toml").read_text("utf-8")).get("reason", [])


@click.command(help=__doc__)
@click.argument("file", type=click.Path(exists=True))
@click.option("--docs", default=str(DOCS), help="The directory that the page goes to.")
@click.option("--strict", is_flag=True, help="Exit with 1 if a missed goal has no reason.")
def main(file: str, docs: str, strict: bool) -> None:
    page = Page(*record.read(file), reasons())
    text = page.fill((HERE / "performance.md").read_text("utf-8"))
    folder = Path(docs) / "performance"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.svg"):
        old.unlink()
    for name, picture in page.plots.items():
        (folder / name).write_text(picture, "utf-8")
    (Path(docs) / "performance.md").write_text(text, "utf-8")
    for line in page.unexplained:
        print(f"missed without a reason in reasons.toml: {line}")
    sys.exit(1 if strict and page.unexplained else 0)


if __name__ == "__main__":
    main()
