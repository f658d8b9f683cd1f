"""CSV files and the spelling of times that all result files share."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

NA = "N/A"


def us(ns: int) -> str:
    """Microseconds with three decimals, exact."""
    if ns >= 1000:  # nearly always, and often
        text = str(ns)
        return f"{text[:-3]}.{text[-3:]}"
    sign = "-" if ns < 0 else ""
    whole, part = divmod(abs(ns), 1000)
    return f"{sign}{whole}.{part:03d}"


def stamp(ns: int) -> str:
    """A moment in a CSV file; the tab keeps spreadsheets from rounding it."""
    return us(ns) + "\t"


def megabytes(size: int) -> float:
    return size / 2**20


def write(path: Path, headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Writes a file that only its owner and group can read; without rows there is no file."""
    rows = list(rows)
    if not rows:
        return
    with open(
        path, "w", newline="", encoding="utf-8", opener=lambda p, f: os.open(p, f, 0o640)
    ) as file:
        out = csv.writer(file)
        out.writerow(headers)
        out.writerows(rows)
