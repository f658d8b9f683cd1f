"""`make matrix`: the tests with each pair of torch and Python; writes the table of docs/compatibility.md.

    python -m tools.matrix 2.13.0 2.7.1:python3.10          # PYTEST_ARGS="tests/ops" narrows it
    python -m tools.matrix 2.10.0:python3.11:/envs/2.10     # an environment that has this torch already

Each pair but that of this environment has its own copy of the tree, environment and objects (make test TORCH=...).
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from softnpu.torch_versions import plain

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "compatibility.md"
BEGIN, END = "<!-- results: make matrix -->", "<!-- end of results -->"
HEAD = "| torch | Python | tests | passed | failed | skipped or expected to fail |\n|---|---|---|---|---|---|\n"

#: the torch and the Python of this environment
OWN = (plain(importlib.metadata.version("torch")), f"python3.{sys.version_info[1]}")


def counts(report: Path) -> tuple[int, int, int]:
    """Passed, failed and skipped tests of a JUnit report."""
    suites = list(ElementTree.parse(report).getroot().iter("testsuite"))
    total, failed, skipped = (
        sum(int(suite.get(name, 0)) for suite in suites for name in names)
        for names in (("tests",), ("failures", "errors"), ("skipped",))
    )
    return total - failed - skipped, failed, skipped


def row(torch: str, python: str, tests: str, report: Path) -> str:
    """One line of the table."""
    if not report.exists():
        return f"| {torch} | {python} | {tests} | the tests did not start | | |\n"
    return f"| {torch} | {python} | {tests} | {' | '.join(map(str, counts(report)))} |\n"


def pair(text: str) -> tuple[str, str, str]:
    """("2.7.1", "python3.10", "") of 2.7.1:python3.10; without a Python it is the one that runs."""
    torch, python, environment = (text.split(":") + ["", ""])[:3]
    return torch, python or OWN[1], environment


def version_of(python: str) -> str:
    """3.10.13 of python3.10."""
    asked = [python, "-c", "import platform; print(platform.python_version())"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def run(torch: str, python: str, environment: str, arguments: str) -> Path:
    """Runs the tests with a pair; the JUnit report."""
    report = ROOT / "build" / "pairs" / f"{torch}-{Path(python).name}.xml"
    report.parent.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    wanted = f"{arguments or '-n logical --maxprocesses 8 --dist loadfile'} --junitxml={report}"
    command = ["make", "test"]
    if (torch, python) != OWN:
        command += [f"TORCH={torch}", f"PYTHON={python}", f"ENV={environment}"]
    subprocess.run([*command, f"PYTEST_ARGS={wanted}"], cwd=ROOT, check=False)
    return report


def rewritten(page: str, rows: list[str]) -> str:
    """The page with other results."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n{HEAD}{''.join(rows)}\n{END}{rest.split(END)[1]}"


def main(pairs: list[str]) -> int:
    arguments = os.environ.get("PYTEST_ARGS", "")
    rows, bad = [], 0
    for torch, python, environment in map(pair, pairs):
        report = run(torch, python, environment, arguments)
        bad += not report.exists() or counts(report)[1] > 0
        rows.append(row(torch, version_of(python), arguments or "all", report))
    PAGE.write_text(rewritten(PAGE.read_text("utf-8"), rows), "utf-8")
    print("".join(rows), end="")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
