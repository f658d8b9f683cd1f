"""`load`: a recording of ours or a dump of msprobe, of one process or of all ranks of a job."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Union

from softnpu.golden import _store

if TYPE_CHECKING:
    from softnpu.golden._msprobe import Dump

Run = Union[_store.Recording, "Dump"]


def load(path: str | os.PathLike[str]) -> dict[str, Run]:
    """Name of the process ("" for one alone, else rank0, step0/rank1, ...) -> its recording."""
    path = Path(path)
    if path.name == "dump.json":
        path = path.parent
    found = _one(path)
    if found is not None:
        return {"": found}
    if not path.is_dir():
        raise ValueError(
            f"{path} does not exist" if not path.exists() else f"{path} is no directory"
        )
    runs: dict[str, Run] = {}
    for inner in sorted(p for p in path.glob("*") if p.is_dir()):
        one = _one(inner)
        if one is not None:
            runs[inner.name] = one
        elif inner.name.startswith("step"):
            for rank in sorted(inner.glob("*")):
                one = _one(rank) if rank.is_dir() else None
                if one is not None:
                    runs[f"{inner.name}/{rank.name}"] = one
    if not runs:
        raise ValueError(
            f"{path} holds neither a recording ({_store.INDEX}) nor a dump of msprobe (dump.json)"
        )
    return runs


def _one(path: Path) -> Run | None:
    from softnpu.golden._msprobe import Dump

    if (path / _store.INDEX).exists():
        return _store.Recording(path)
    if (path / "dump.json").exists():
        return Dump(path)
    return None
