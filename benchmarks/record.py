"""The file of a run: what machine it was, which versions, and the rows. Written as JSON, read back as rows."""

from __future__ import annotations

import datetime
import json
import math
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy
import torch

from benchmarks import limits
from benchmarks.harness import Against, Goal, Row
from softnpu import __version__

#: flags of /proc/cpuinfo that numeric kernels ask for, on x86 and on Arm
_FEATURES = re.compile(
    r"sse4_2|avx\w*|fma|f16c|amx\w*|asimd\w*|sve\w*|fphp|bf16|i8mm|svebf16|sme2?"
)


def machine() -> dict[str, Any]:
    """What the numbers depend on, with the machine's two limits as measured now."""
    return {
        **_processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load": os.getloadavg()[0],
        "copy_gb_per_s": round(limits.copy_rate() / 1e9, 1),
        "fp32_gflop_per_s": round(limits.blas_rate() / 1e9, 1),
        "versions": _versions(),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def _processor() -> dict[str, Any]:
    info = Path("/proc/cpuinfo")
    fields: dict[str, str] = {}
    for line in info.read_text().splitlines() if info.exists() else []:
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    return {
        "cpu": fields.get("model name") or platform.machine(),
        "features": sorted(f for f in flags if _FEATURES.fullmatch(f)),
    }


def _versions() -> dict[str, str]:
    config = torch.__config__.show()
    found = {
        "mkl": re.search(r"Math Kernel Library Version (\S+)", config),
        "onednn": re.search(r"MKL-DNN v(\S+)", config),
    }
    compiler = subprocess.run(["g++", "-dumpfullversion"], capture_output=True, text=True)
    return {
        "softnpu": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "g++": compiler.stdout.strip(),
        "system": f"{platform.system()} {platform.release()}",
        **{name: match.group(1) for name, match in found.items() if match},
    }


def write(path: str | Path, about: dict[str, Any], rows: list[Row]) -> None:
    text = json.dumps({"machine": about, "results": [_plain(r) for r in rows]}, indent=1)
    Path(path).write_text(text + "\n", "utf-8")


def read(path: str | Path) -> tuple[dict[str, Any], list[Row]]:
    data = json.loads(Path(path).read_text("utf-8"))
    return data["machine"], [_row(r) for r in data["results"]]


def _plain(row: Row) -> dict[str, Any]:
    return {
        "group": row.group,
        "name": row.name,
        "unit": row.unit,
        "npu": _number(row.value),
        "rounds": row.rounds,
        "seconds": round(row.seconds, 2),
        "error": row.error,
        "met": row.met,
        "versus": {name: _plain_against(a) for name, a in row.versus.items()},
    }


def _plain_against(against: Against) -> dict[str, Any]:
    goal = against.goal
    return {
        "value": _number(against.value),
        "ratio": _number(against.ratio),
        "goal": None if goal is None else goal.limit,
        "goal_of": None if goal is None else "mean" if goal.mean else "case",
        "met": against.met,
        "note": against.note,
    }


def _number(value: float) -> float | None:
    """JSON has no nan."""
    return None if math.isnan(value) else value


def _row(data: dict[str, Any]) -> Row:
    versus = {}
    for name, a in data["versus"].items():
        goal = None if a["goal"] is None else Goal(a["goal"], a["goal_of"] == "mean")
        value, ratio = (math.nan if x is None else x for x in (a["value"], a["ratio"]))
        versus[name] = Against(value, ratio, goal, a["note"])
    plain = {key: data[key] for key in ("group", "name", "unit", "rounds", "error", "seconds")}
    return Row(value=math.nan if data["npu"] is None else data["npu"], versus=versus, **plain)
