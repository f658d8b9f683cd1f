"""Kernels and collectives of a real card's profile, as tasks with their measured times."""

from __future__ import annotations

import contextlib
import csv
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softnpu.plan.clock.classes import ATTENTION, classify
from softnpu.plan.clock.collectives import kind_of
from softnpu.plan.clock.figures import ClockError
from softnpu.plan.tasks import Task, TensorSpec

_DTYPES = {
    "FLOAT": "float32", "FLOAT16": "float16", "DT_BF16": "bfloat16", "BF16": "bfloat16", "DOUBLE": "float64",
    "INT64": "int64", "INT32": "int32", "INT16": "int16", "INT8": "int8", "UINT8": "uint8", "BOOL": "bool",
    "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64", "COMPLEX64": "complex64", "COMPLEX128": "complex128",
    "INT4": "int4", "DT_INT4": "int4", "FLOAT8_E4M3FN": "float8_e4m3fn", "FLOAT8_E5M2": "float8_e5m2", "HIFLOAT8": "hifloat8",
}  # fmt: skip
_COLUMNS = (
    "Type", "Duration(us)", *(f"{side} {what}" for side in ("Input", "Output") for what in ("Shapes", "Data Types", "Formats")),
)  # fmt: skip
_SKIPPED = ("N/A", "")


@dataclass(frozen=True, slots=True)
class Measured:
    """A task and the seconds it took."""

    task: Task
    seconds: float


def find(directory: Path, name: str) -> list[Path]:
    """Files of that name in a profile, or in the profiles below a directory."""
    return sorted(directory.rglob(name))


def kernels(path: Path) -> Iterator[Measured]:
    """Rows of a kernel_details.csv that have shapes."""
    with _reading(path), open(path, newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file, restval="")
        columns = rows.fieldnames or []
        for needed in _COLUMNS:
            if needed not in columns:
                raise ClockError(f"{path} has no column {needed!r}")
        for row in rows:
            one = _kernel(row)
            if one is not None:
                yield one


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Rows and entries that no profiler writes are an error that names the file."""
    try:
        yield
    except ClockError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError, csv.Error) as error:
        raise ClockError(f"{path} is not as a profiler writes it: {error!r}") from None


def _kernel(row: dict[str, str]) -> Measured | None:
    kind = row["Type"].strip()
    seconds = _finite(float(row["Duration(us)"])) * 1e-6
    shapes = row["Input Shapes"].strip()
    if kind in _SKIPPED or shapes in _SKIPPED or seconds <= 0:
        return None
    if "COMMUNICATION" in row.get("Accelerator Core", ""):
        return None
    inputs = _tensors(row, "Input")
    outputs = _tensors(row, "Output")
    if inputs is None or outputs is None:
        return None
    attributes: tuple[tuple[str, object], ...] = ()
    if classify(kind) == ATTENTION:
        found = _heads(outputs)
        if found is None:
            return None  # nothing in the row says which dimension is the heads'
        inputs, attributes = (
            inputs,
            (("head_num", found[0]), ("input_layout", _layout(inputs, found))),
        )
    return Measured(Task(kind, "kernel", 0, 0, inputs, outputs, attributes), seconds)


def _tensors(row: dict[str, str], side: str) -> tuple[TensorSpec, ...] | None:
    """None where a type is not known."""
    shapes = row[f"{side} Shapes"].strip().strip('"').split(";")
    dtypes = row[f"{side} Data Types"].strip().strip('"').split(";")
    formats = row[f"{side} Formats"].strip().strip('"').split(";")
    found = []
    for index, text in enumerate(shapes):
        dtype = _DTYPES.get(dtypes[index].strip()) if index < len(dtypes) else None
        if text == "" and len(shapes) > 1 and (dtype is None or dtypes[index] in _SKIPPED):
            continue  # an optional tensor that is not there
        if dtype is None or text in _SKIPPED[:1]:
            return None
        shape = tuple(int(size) for size in text.split(",") if size)
        nz = index < len(formats) and formats[index].strip() == "FRACTAL_NZ"
        found.append(TensorSpec(_plain(shape) if nz else shape, dtype))
    return tuple(found)


def _plain(shape: tuple[int, ...]) -> tuple[int, ...]:
    """FRACTAL_NZ: columns by blocks, rows by blocks, rows and columns of a block."""
    if len(shape) < 4:
        return shape
    *outer, columns, rows, high, wide = shape
    return (*outer, rows * high, columns * wide)


def _heads(outputs: tuple[TensorSpec, ...]) -> tuple[int, int] | None:
    """Heads and rows, from the sums of softmax, whose shape is batch, heads, rows, 8."""
    for spec in outputs:
        if len(spec.shape) == 4 and spec.shape[3] == 8:
            return spec.shape[1], spec.shape[2]
    return None


def _layout(inputs: tuple[TensorSpec, ...], found: tuple[int, int]) -> str:
    shape = inputs[0].shape
    heads, rows = found
    if len(shape) == 4:
        return "BNSD" if shape[1] == heads else "BSND"
    return "BSH" if len(shape) == 3 and shape[1] == rows else "SBH"


@dataclass(frozen=True, slots=True)
class Transfer:
    """A collective of communication.json: its kind, bytes that left the rank, ranks of the group, seconds."""

    kind: str
    nbytes: float
    ranks: int
    seconds: float
    passes: int = 1  # over the group: an all-reduce sends its parts twice


def collectives(path: Path) -> Iterator[Transfer]:
    """Entries of a communication.json, without the time in which a rank waits for the others."""
    try:
        steps = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ClockError(f"{path} is not JSON: {error}") from error
    with _reading(path):
        metadata = _metadata(path)
        groups = _groups(metadata)
        twice = not metadata.get("predicted")  # the files of a prediction count every part once
        for step in steps.values():
            for kinds in step.values():
                for name, entry in kinds.items():
                    if name != "Total Op Info":
                        one = _transfer(name, entry, groups, twice)
                        if one is not None:
                            yield one


def _transfer(
    name: str, entry: dict[str, Any], groups: dict[str, int], twice: bool
) -> Transfer | None:
    times = entry["Communication Time Info"]
    links = entry["Communication Bandwidth Info"]
    # SDMA is the sum of HCCS, PCIE and SIO.
    size = sum(links.get(link, {}).get("Transit Size(MB)", 0.0) for link in ("SDMA", "RDMA")) * 1e6
    waited = times.get("Wait Time(ms)", 0.0)
    seconds = _finite(times["Elapse Time(ms)"] - waited) * 1e-3
    if not size or seconds <= 0:
        return None
    operation, _, group = name.partition("@")
    plain = re.sub(r"__.*", "", operation.removeprefix("hcom_"))
    kind = kind_of(plain)
    passes = 2 if twice and kind == "all_reduce" else 1
    return Transfer(kind, size, groups.get(group, 0), seconds, passes)


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise ValueError(f"{number} is not a time")
    return number


def _metadata(path: Path) -> dict[str, Any]:
    for folder in list(path.parents)[:2]:
        file = folder / "profiler_metadata.json"
        if file.exists():
            return json.loads(file.read_text("utf-8"))
    return {}


def _groups(metadata: dict[str, Any]) -> dict[str, int]:
    """Sizes of communicators by the number that communication.json uses."""
    from torch_npu.profiler._events import group_id

    found = metadata.get("parallel_group_info", {})
    return {group_id(name): len(one["global_ranks"]) for name, one in found.items()}
