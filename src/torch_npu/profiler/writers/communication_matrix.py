"""communication_matrix.json: volume and time between each pair of ranks, by step; from Level1 on.

Differs from upstream: links of a collective share its time and its volume evenly; all are HCCS.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch_npu.profiler._communication import Communication
from torch_npu.profiler._model import Model, group_id
from torch_npu.profiler._raw import write_json
from torch_npu.profiler.writers.communication import COLLECTIVE, P2P, by_step, kind, volume

NAME = "communication_matrix.json"

Link = dict[str, Any]


def links(one: Communication) -> Iterator[tuple[str, float]]:
    """The pairs `source-target`, as ranks of the group, in which this rank takes part, and the MB that each moves."""
    place = {rank: number for number, rank in enumerate(sorted(one.ranks))}
    own = place[one.rank]
    if kind(one) == P2P and one.peer not in place:
        return  # the other side is not known
    if one.name == "receive":
        yield f"{place[one.peer]}-{own}", one.size / 1e6
    elif one.peer >= 0:
        yield f"{own}-{place[one.peer]}", one.size / 1e6
    else:
        others = [number for number in place.values() if number != own]
        for number in others:
            yield f"{own}-{number}", volume(one) / len(others) / 1e6


def write(model: Model, out: Path) -> None:
    if not (model.with_npu and model.detailed and model.communications):
        return
    matrix: dict[str, Any] = {}
    for step, place, name, pair, link in rows(model):
        group = matrix.setdefault(step, {P2P: {}, COLLECTIVE: {}})
        group[place].setdefault(name, {})[pair] = link
    write_json(out / NAME, matrix)


def rows(model: Model) -> Iterator[tuple[str, str, str, str, Link]]:
    """Step, p2p or collective, the name with its rank by bandwidth, the pair, and the link."""
    found: dict[tuple[str, str, str, str, str], list[Link]] = {}
    for step, name, one in by_step(model):
        operator = name.split("@")[0]
        for pair, size in links(one):
            time = (one.end_ns - one.start_ns) / 1e6
            key = (step, kind(one), one.name.lower(), group_id(one.group), pair)
            found.setdefault(key, []).append(_link(size, time) | {"Op Name": operator})
    for (step, place, operation, group, pair), each in found.items():
        each.sort(key=lambda link: link["Bandwidth(GB/s)"], reverse=True)
        whole = _link(
            sum(e["Transit Size(MB)"] for e in each), sum(e["Transit Time(ms)"] for e in each)
        )
        chosen = {
            "top1": each[0],
            "middle": each[len(each) // 2],
            "bottom1": each[-1],
            "total": whole,
        }
        for place_from_end in (2, 3):
            if len(each) >= place_from_end:
                chosen[f"bottom{place_from_end}"] = each[-place_from_end]
        for label, link in chosen.items():
            yield step, place, f"{operation}-{label}@{group}", pair, link


def _link(size: float, time: float) -> Link:
    return {
        "Transport Type": "HCCS",
        "Transit Size(MB)": size,
        "Transit Time(ms)": time,
        "Bandwidth(GB/s)": round(size / time, 4) if time else 0.0,
    }
