"""SQLite files: tables by name and columns, written in one transaction, and ids of strings."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

INTEGER, TEXT, NUMERIC = "INTEGER", "TEXT", "NUMERIC"


class Strings:
    """Each text has one number; tables hold the number."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self._ids.setdefault(text, len(self._ids))

    def rows(self) -> list[tuple[int, str]]:
        return [(number, text) for text, number in self._ids.items()]


class Database:
    """A new file; it appears under its name when all is written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._draft = path.with_name(f".{path.name}.{os.getpid()}")
        self._draft.unlink(missing_ok=True)
        os.close(os.open(self._draft, os.O_CREAT | os.O_WRONLY, 0o640))
        self._connection = sqlite3.connect(self._draft)
        self._connection.execute("PRAGMA synchronous = OFF")
        self._connection.execute("PRAGMA journal_mode = OFF")

    def table(
        self, name: str, columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[Any]]
    ) -> None:
        spelled = ", ".join(f"{column} {kind}" for column, kind in columns)
        self._connection.execute(f"CREATE TABLE {name} ({spelled})")
        marks = ", ".join("?" * len(columns))
        self._connection.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)

    def index(self, name: str, table: str, *columns: str) -> None:
        self._connection.execute(f"CREATE INDEX {name} ON {table} ({', '.join(columns)})")

    def close(self) -> None:
        self._connection.commit()
        self._connection.close()
        os.replace(self._draft, self._path)


def integers(*names: str) -> list[tuple[str, str]]:
    return [(name, INTEGER) for name in names]
