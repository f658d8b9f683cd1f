"""Factors by operator that a profile of a real card gives: measured over predicted time, by class of cost and by name."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from softnpu.plan.clock import classes, collectives
from softnpu.plan.clock.figures import ClockError, Cost
from softnpu.plan.tasks import Task

VERSION = 1


def key_of(task: Task) -> tuple[str, str]:
    """Class and name under which a task's factor is kept; names are those of kernels' types, in one spelling."""
    if task.kind == "collective":
        kind = collectives.kind_of(task.name)
        return "collective", f"{kind}"
    return classes.classify(task.name), plain(task.name)


def plain(name: str) -> str:
    """One spelling for `npu::npu_rms_norm`, `aten::mm` and the kernel type `RmsNorm`."""
    local = name.rsplit("::", 1)[-1].split(".", 1)[0].removeprefix("npu_")
    return local.replace("_", "").lower()


@dataclass(frozen=True, slots=True)
class Calibration:
    """Factors on predicted times: of a name where the profile had it, else of its class."""

    chip: str
    names: dict[str, float] = field(default_factory=dict)
    classes: dict[str, float] = field(default_factory=dict)

    def factor(self, task: Task) -> float:
        kind, name = key_of(task)
        return self.names.get(f"{kind}:{name}", self.classes.get(kind, 1.0))

    def apply(self, task: Task, cost: Cost) -> Cost:
        return Cost(cost.seconds * self.factor(task), cost.bound, cost.flops)

    def write(self, path: Path) -> None:
        value = {
            "version": VERSION,
            "chip": self.chip,
            "classes": self.classes,
            "names": self.names,
        }
        path.write_text(json.dumps(value, indent=2) + "\n", "utf-8")

    @classmethod
    def read(cls, path: Path) -> Calibration:
        try:
            value = json.loads(path.read_text("utf-8"))
            if value["version"] != VERSION:
                raise ClockError(
                    f"{path}: version {value['version']} of a calibration, not {VERSION}"
                )
            found = cls(value["chip"], dict(value["names"]), dict(value["classes"]))
        except ClockError:
            raise
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ClockError(
                f"{path} is not a calibration that softnpu wrote: {error!r}"
            ) from error
        for key, factor in (found.names | found.classes).items():
            if type(factor) not in (int, float) or not 0 < factor < float("inf"):
                raise ClockError(
                    f"{path} is not a calibration that softnpu wrote: the factor of {key} is {factor!r}"
                )
        return found
