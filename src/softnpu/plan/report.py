"""The report of a plan: what `--json` holds, what the terminal shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from softnpu.chips import Chip
from softnpu.plan import advice, timing
from softnpu.plan.clock import Calibration, ClockError, Prediction
from softnpu.plan.memory import Line, Memory, analyze
from softnpu.plan.ranks import Ran
from softnpu.plan.recording import KINDS, Recording

_LINES = 20  # of the program, in the data
_STEPS = {
    "optimizer": "from one optimizer step to the next",
    "profiler": "from one step() of a profiler to the next",
    "program": "the whole program: no optimizer or profiler stepped",
}


def of_rank(
    ran: Ran, chip: Chip, ranks: int, rank: int, calibration: Calibration | None
) -> tuple[dict[str, Any], Prediction | None]:
    """Everything about one rank, as JSON, and the prediction of its step."""
    data: dict[str, Any] = {"soc": chip.name, "ranks": ranks, "rank": rank, "exit_code": ran.code}
    found = ran.recording
    if found is None:
        nothing = "the program used no NPU: there is nothing to plan"
        if ran.code:  # os._exit or a signal: it may have
            nothing = f"nothing to plan: the program used no NPU, or ended with code {ran.code} before it could tell"
        return data | _nothing(chip) | {"notes": [nothing]}, None
    memory = analyze(found)
    data |= _memory(found, memory, chip)
    times, prediction, notes = _times(found, chip, ranks, calibration)
    steps = found.steps
    count = steps.count if steps.kind != "program" or found.complete else 0
    step = {"kind": steps.kind, "meaning": _STEPS[steps.kind], "complete": count}
    if not count:
        notes.append("the program never reached the end of a step: this is what it did until then")
    return data | times | {
        "step": step, "launches": found.launches, "complete": found.complete, "error": found.error,
        "notes": [*found.notes, *notes],
    }, prediction  # fmt: skip


def _nothing(chip: Chip) -> dict[str, Any]:
    return {
        "peak_allocated_bytes": 0, "peak_reserved_bytes": 0, "capacity_bytes": chip.memory, "fits": None,
        "by_kind": dict.fromkeys(KINDS, 0), "step_seconds": None, "mfu": None, "kernels": [], "lines": [],
        "advice": [], "curve": [], "error": "", "complete": False,
    }  # fmt: skip


def _memory(found: Recording, memory: Memory, chip: Chip) -> dict[str, Any]:
    buffers = sum(size for _, size in found.groups)
    needed = memory.peak_needed + buffers
    node = int(chip.links.get("node_devices", 8))
    overhead = memory.peak_needed - memory.peak_allocated
    return {
        "peak_allocated_bytes": memory.peak_allocated,
        "peak_reserved_bytes": memory.peak_reserved,
        "peak_needed_bytes": memory.peak_needed,
        "hccl_buffer_bytes": buffers,
        "workspace_bytes": memory.workspace,
        "peak_without_workspace_bytes": memory.peak_without_workspace,
        "capacity_bytes": found.capacity,
        "fits": needed <= found.capacity,
        "fits_without_workspace": memory.peak_without_workspace + buffers <= found.capacity,
        "margin_bytes": found.capacity - needed,
        "needs_cached_memory": memory.peak_reserved + buffers > found.capacity >= needed,
        "by_kind": memory.by_kind,
        "lines": [_line(line) for line in memory.lines[:_LINES]],
        "refused": _refused(found),
        "advice": [
            {
                "name": one.name, "text": one.text, "saves_bytes": one.saves, "peak_allocated_bytes": one.peak,
                "fits": one.peak + overhead + buffers <= found.capacity,
            }
            for one in advice.advise(found, memory, node)
        ],
        "curve": [{"event": at, "bytes": kinds} for at, kinds in memory.curve],
        "curve_peak_event": memory.peak_at,
    }  # fmt: skip


def _line(line: Line) -> dict[str, Any]:
    origin = line.origin
    return {
        "file": origin.file, "line": origin.line, "function": origin.function, "phase": origin.phase,
        "modules": list(origin.modules), "bytes": line.size, "blocks": line.blocks, "by_kind": line.kinds,
    }  # fmt: skip


def _refused(found: Recording) -> dict[str, Any] | None:
    """The first allocation that failed though nothing limits a plan: an injected fault, or sizes beyond any memory."""
    for event in found.events:
        if event.action == "oom":
            origin = found.origins[event.origin] if event.origin >= 0 else None
            where = {"file": origin.file, "line": origin.line} if origin is not None else {}
            return {"bytes": event.size, **where}
    return None


def _times(
    found: Recording, chip: Chip, ranks: int, calibration: Calibration | None
) -> tuple[dict[str, Any], Prediction | None, list[str]]:
    """A task whose time nobody can know leaves the memory's part of the report as it is."""
    nothing: dict[str, Any] = {"step_seconds": None, "mfu": None, "kernels": []}
    if not found.tasks:
        return nothing, None, ["no predicted time: the program launched nothing"]
    try:
        prediction = timing.time(
            found.tasks, chip.name, ranks, calibration, alone=found.steps.alone
        )
    except (ClockError, ValueError) as wrong:
        return nothing, None, [f"no predicted time: {wrong}"]
    graphs = sum(task.name.endswith("::compiled_graph") for task in found.tasks)
    notes = [f"{graphs} compiled graphs in the step are timed as one kernel each, by their arguments alone: too short"]  # fmt: skip
    return timing.as_data(found.tasks, prediction), prediction, notes if graphs else []


# --- several ranks and jobs ------------------------------------------------------------------------------------


def summary(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of several ranks, the fullest and the slowest count."""
    slowest = max(
        (one for one in reports if one["step_seconds"] is not None),
        key=lambda one: one["step_seconds"],
        default=None,
    )
    fits = [one["fits"] for one in reports if one["fits"] is not None]
    return {
        "peak_allocated_bytes": max(one["peak_allocated_bytes"] for one in reports),
        "peak_reserved_bytes": max(one["peak_reserved_bytes"] for one in reports),
        "fits": all(fits) if fits else None,
        "step_seconds": slowest["step_seconds"] if slowest is not None else None,
        "mfu": slowest["mfu"] if slowest is not None else None,
    }


def as_json(program: str, soc: str, reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What `--json` holds."""
    worlds = sorted({one["ranks"] for one in reports})
    jobs = []
    for world in worlds:
        found = [one for one in reports if one["ranks"] == world]
        jobs.append({"ranks": world, **summary(found), "by_rank": found})
    return {"program": program, "soc": soc, "predicted": True, **summary(reports), "jobs": jobs}


# --- words -----------------------------------------------------------------------------------------------------


def size(count: float) -> str:
    """Bytes for people."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if abs(count) >= unit:
            return f"{count / unit:.2f} {name}"
    return f"{count:.0f} bytes"


def verdict(one: Mapping[str, Any]) -> str:
    """fits / does not fit, and by how much."""
    limit = size(one["capacity_bytes"])
    margin = one["margin_bytes"]
    if not one["fits"]:
        without = ", but it does without temporaries inside of kernels"
        return f"does not fit in {limit}, by {size(-margin)}" + without * one["fits_without_workspace"]  # fmt: skip
    more = ", if the allocator gives back what it only caches" if one["needs_cached_memory"] else ""
    return f"fits in {limit}, {size(margin)} to spare{more}"


def lines(one: Mapping[str, Any], prediction: Prediction | None) -> list[str]:
    """The report of a rank for the terminal."""
    said = [f"rank {one['rank']} of {one['ranks']} on {one['soc']}"]
    if one["fits"] is None:
        return said + [f"  {note}" for note in one["notes"]]
    said.append(f"  memory: {size(one['peak_allocated_bytes'])} allocated at the peak, "
                f"{size(one['peak_reserved_bytes'])} reserved: {verdict(one)}")  # fmt: skip
    held = ", ".join(f"{kind} {size(n)}" for kind, n in one["by_kind"].items() if n)
    said.append(f"  at the peak: {held or 'nothing'}")
    if one["workspace_bytes"]:
        said.append(f"  of the temporaries, {size(one['workspace_bytes'])} are inside of kernels, where the card may need "
                    f"less; without all such, the peak is {size(one['peak_without_workspace_bytes'])}")  # fmt: skip
    if one["hccl_buffer_bytes"]:
        said.append(f"  HCCL's buffers besides: {size(one['hccl_buffer_bytes'])}")
    if one["lines"]:
        top = one["lines"][0]
        said.append(f"  most is held by {place(top)}: {size(top['bytes'])} ({', '.join(top['by_kind'])})")  # fmt: skip
    if one["refused"]:
        refused = one["refused"]
        said.append(f"  an allocation of {size(refused['bytes'])} failed at {place(refused)}")
    said += [
        f"  to try: {each['text']}: {size(each['saves_bytes'])} less" + (", then it fits" if each["fits"] and not one["fits"] else "")
        for each in one["advice"]
    ]  # fmt: skip
    if prediction is not None:
        said += [f"  {line}" for line in timing.lines(prediction)]
    step = one["step"]
    said.append(f"  step: {step['meaning']}; {step['complete']} complete")
    if one["error"]:
        said.append(f"  the program ended with {one['error']}")
    return said + [f"  note: {note}" for note in one["notes"]]


def place(one: Mapping[str, Any]) -> str:
    return f"{one['file']}:{one['line']}" if one.get("file") else "no line of Python"


def rows(jobs: Iterable[Mapping[str, Any]]) -> list[str]:
    """A line for each number of ranks."""
    said = []
    for job in jobs:
        step = f"step {1e3 * job['step_seconds']:.2f} ms, MFU {job['mfu']:.1%}" if job["step_seconds"] is not None else "no step"  # fmt: skip
        fits = {True: "fits", False: "does not fit", None: "no memory"}[job["fits"]]
        said.append(f"{job['ranks']} ranks: {step}, {size(job['peak_reserved_bytes'])} a rank, {fits}")  # fmt: skip
    return said
