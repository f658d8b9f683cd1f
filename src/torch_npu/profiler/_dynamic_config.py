"""profiler_config.json, which switches dynamic_profile on: its template, and what a program makes of an edit."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any

from softnpu import ownership
from torch_npu.profiler._activity import ProfilerActivity
from torch_npu.profiler._messages import warn
from torch_npu.profiler.experimental_config import AiCMetrics, ProfilerLevel, _ExperimentalConfig
from torch_npu.utils._path_manager import PathManager

FILE = "profiler_config.json"
NOW = -1  # start_step of a profile that begins with the next step
_MAX_SIZE = 1024 * 1024

TEMPLATE: dict[str, Any] = {
    "activities": ["CPU", "NPU"],
    "prof_dir": "./",
    "analyse": False,
    "async_mode": False,
    "record_shapes": False,
    "profile_memory": False,
    "with_stack": False,
    "with_flops": False,
    "with_modules": False,
    "active": 1,
    "warmup": 0,
    "start_step": 0,
    "is_rank": False,
    "rank_list": [],
    "experimental_config": {
        "profiler_level": "Level0",
        "aic_metrics": "AiCoreNone",
        "l2_cache": False,
        "op_attr": False,
        "gc_detect_threshold": None,
        "data_simplification": True,
        "record_op_args": False,
        "export_type": ["text"],
        "mstx": False,
        "mstx_domain_include": [],
        "mstx_domain_exclude": [],
        "host_sys": [],
        "sys_io": False,
        "sys_interconnection": False,
    },
}
_FLAGS = (
    "analyse", "async_mode", "record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules", "is_rank",
)  # fmt: skip


@dataclass
class DynamicConfig:
    """The settings of one profile. Wrong values are replaced by the template's, with a warning."""

    activities: list[ProfilerActivity] = field(default_factory=list)
    prof_dir: str = "./"
    analyse: bool = False
    async_mode: bool = False
    record_shapes: bool = False
    profile_memory: bool = False
    with_stack: bool = False
    with_flops: bool = False
    with_modules: bool = False
    active: int = 1
    warmup: int = 0
    start_step: int = 0
    is_rank: bool = False
    rank_list: list[int] = field(default_factory=list)
    experimental_config: _ExperimentalConfig | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    def concerns(self, rank: int | None) -> bool:
        """Whether this rank is to be profiled."""
        return not self.is_rank or (-1 if rank is None else rank) in self.rank_list


def write_template(path: str) -> None:
    """Makes the file, unless it is there: ranks that share it do not overwrite each other's."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
    except FileExistsError:
        return
    with open(handle, "w", encoding="utf-8") as file:
        json.dump(TEMPLATE, file, indent=4)


def load(path: str) -> DynamicConfig:
    """Reads and checks a file; raises RuntimeError or OSError if it cannot be used at all."""
    PathManager.check_input_file_path(path)
    PathManager.check_directory_path_readable(path)
    try:
        values = json.loads(ownership.read_text(path, _MAX_SIZE))
    except ownership.Untrusted as wrong:
        raise RuntimeError(str(wrong)) from wrong
    except (ValueError, RecursionError) as wrong:
        raise RuntimeError(f"{path} is not JSON: {wrong}") from None
    if not isinstance(values, dict) or not values:
        raise RuntimeError(f"{path} must hold a JSON object with settings")
    return parse(values)


def parse(values: dict[str, Any]) -> DynamicConfig:
    config = DynamicConfig(activities=_activities(values.get("activities")))
    for name in _FLAGS:
        setattr(config, name, _flag(name, values.get(name, False)))
    config.prof_dir = _text("prof_dir", values.get("prof_dir", "./"))
    config.active = _number("active", values.get("active", 1), 1, 1)
    config.warmup = _number("warmup", values.get("warmup", 0), 0, 0)
    config.start_step = _number("start_step", values.get("start_step", 0), NOW, 0)
    ranks = values.get("rank_list", [])
    if not isinstance(ranks, list):
        warn(f"rank_list must be a list, but is {ranks!r}; no rank is chosen.")
        ranks = []
    config.rank_list = [
        r for r in ranks if isinstance(r, int) and not isinstance(r, bool) and r >= 0
    ]
    metadata = values.get("metadata", {})
    config.metadata = metadata if isinstance(metadata, dict) else {}
    if config.is_rank and config.analyse and not config.async_mode:
        config.analyse = False  # chosen ranks must not keep the others waiting
    if config.async_mode and not config.analyse:
        warn("async_mode has an effect with analyse only.")
    chosen = values.get("experimental_config")
    if isinstance(chosen, dict) and chosen:
        config.experimental_config = _experimental(chosen)
    return config


def _experimental(values: dict[str, Any]) -> _ExperimentalConfig:
    level = values.get("profiler_level", "Level0")
    metrics = values.get("aic_metrics", "AiCoreNone")
    known = {**TEMPLATE["experimental_config"], "msprof_tx": False}
    rest = {
        name: values.get(name, default)
        for name, default in known.items()
        if name not in ("profiler_level", "aic_metrics")
    }
    return _ExperimentalConfig(
        profiler_level=getattr(ProfilerLevel, str(level), level),
        aic_metrics=getattr(AiCMetrics, str(metrics), metrics),
        **rest,
    )


def _activities(values: Any) -> list[ProfilerActivity]:
    found = []
    for name in values if isinstance(values, list) else ():
        activity = ProfilerActivity.__members__.get(str(name).upper())
        if activity is None:
            warn(f"activities are CPU and NPU, but {name!r} is given; it is left out.")
        else:
            found.append(activity)
    return found


def _flag(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    warn(f"{name} must be true or false, but is {value!r}; false is used.")
    return False


def _text(name: str, value: Any) -> str:
    if isinstance(value, str) and value:
        return value
    warn(f"{name} must be a path, but is {value!r}; ./ is used.")
    return "./"


def _number(name: str, value: Any, least: int, default: int) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= least:
        return value
    warn(f"{name} must be an integer of at least {least}, but is {value!r}; {default} is used.")
    return default
