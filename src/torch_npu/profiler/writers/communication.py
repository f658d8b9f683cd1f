"""communication.json: time and volume of every communication, by step; from Level1 on.

Differs from upstream: what the network does inside a communication is not visible: all of its time counts as transit,
none as waiting or synchronization; its volume follows from the operation and counts as SDMA over HCCS, in one packet.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch_npu.profiler._communication import Communication
from torch_npu.profiler._model import Model, group_id
from torch_npu.profiler._raw import write_json

NAME = "communication.json"
P2P, COLLECTIVE = "p2p", "collective"
TRANSPORTS = ("RDMA", "HCCS", "PCIE", "SDMA", "SIO")
_LARGE = 32.0  # MB of a packet that counts as large
_TIMES = ("Elapse", "Transit", "Wait", "Synchronization", "Idle")


def kind(one: Communication) -> str:
    return P2P if one.name in ("send", "receive", "batchsendrecv") else COLLECTIVE


def by_step(model: Model) -> Iterator[tuple[str, str, Communication]]:
    """Step, name with group, communication."""
    for name, one in model.named_communications:
        step = model.step_at(one.start_ns)
        if step is not None or not model.steps:
            label = "step" if step is None else f"step{step.number}"
            yield label, f"{name}@{group_id(one.group)}", one


def volume(one: Communication) -> int:
    """Bytes that this rank moves: its part to each of the others."""
    others = max(0, len(one.ranks) - 1)
    if one.name in ("send", "receive", "batchsendrecv"):
        return one.size
    if one.name in ("allGather", "broadcast", "scatter", "gather", "reduce"):
        return one.size * others
    return one.size * others // max(1, len(one.ranks))


def write(model: Model, out: Path) -> None:
    if not (model.with_npu and model.detailed and model.communications):
        return
    steps: dict[str, Any] = {}
    for step, name, one in by_step(model):
        group = steps.setdefault(step, {P2P: {}, COLLECTIVE: {}})
        group[kind(one)][name] = _entry(one)
    for step in steps.values():
        for ops in step.values():
            if ops:
                ops["Total Op Info"] = _total(list(ops.values()))
    write_json(out / NAME, steps)


def _entry(one: Communication) -> dict[str, Any]:
    elapsed = (one.end_ns - one.start_ns) / 1e6
    size = volume(one) / 1e6
    return {
        "Communication Time Info": {"Start Timestamp(us)": one.start_ns / 1000, **_time(elapsed)},
        "Communication Bandwidth Info": {
            name: _bandwidth(size if name in ("HCCS", "SDMA") else 0.0, elapsed if name in ("HCCS", "SDMA") else 0.0)
            for name in TRANSPORTS
        },
    }  # fmt: skip


def _time(elapsed: float) -> dict[str, float]:
    values = {
        f"{name} Time(ms)": elapsed if name in ("Elapse", "Transit") else 0.0 for name in _TIMES
    }
    return {**values, "Wait Time Ratio": 0.0, "Synchronization Time Ratio": 0.0}


def _bandwidth(size: float, time: float) -> dict[str, Any]:
    return {
        "Transit Size(MB)": size,
        "Transit Time(ms)": time,
        "Bandwidth(GB/s)": round(size / time, 4) if time else 0.0,
        "Large Packet Ratio": 1.0 if size >= _LARGE else 0.0,
        "Size Distribution": {str(size): [1, time]} if size else {},
    }


def _total(entries: list[dict[str, Any]]) -> dict[str, Any]:
    elapsed = sum(e["Communication Time Info"]["Elapse Time(ms)"] for e in entries)
    transports: dict[str, Any] = {}
    for name in TRANSPORTS:
        parts = [e["Communication Bandwidth Info"][name] for e in entries]
        whole = _bandwidth(
            sum(p["Transit Size(MB)"] for p in parts), sum(p["Transit Time(ms)"] for p in parts)
        )
        sizes: dict[str, list[float]] = {}
        for part in parts:
            for size, (count, time) in part["Size Distribution"].items():
                old = sizes.get(size, [0, 0.0])
                sizes[size] = [old[0] + count, old[1] + time]
        transports[name] = {**whole, "Size Distribution": sizes}
    return {"Communication Time Info": _time(elapsed), "Communication Bandwidth Info": transports}  # fmt: skip
