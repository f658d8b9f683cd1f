"""kernel_details.csv: every kernel that ran on a device.

Differs from upstream: names and types of kernels derive from the operators (`aten::add` is `aclnnAdd_AddAiCore_Add`),
the accelerator core from the type, times from the host. OP State, Block Num, Mix Block Num, HF32 Eligible, Context ID and
every counter of AI cores (aic_metrics) are N/A; formats are ND.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch_npu.profiler._kernels import dtype_name, format_name
from torch_npu.profiler._model import Model, Task
from torch_npu.profiler.writers import _csv
from torch_npu.profiler.writers._csv import NA, stamp, us

NAME = "kernel_details.csv"

_SHAPES = [
    "Input Shapes", "Input Data Types", "Input Formats", "Output Shapes", "Output Data Types", "Output Formats",
]  # fmt: skip
_SHORT = [
    "Device_id", "Name", "Type", "Accelerator Core", "Start Time(us)", "Duration(us)", "Wait Time(us)", "Block Num",
]  # fmt: skip
_LONG = [
    "Device_id", "Model ID", "Task ID", "Stream ID", "Name", "Type", "OP State", "Accelerator Core", "Start Time(us)",
    "Duration(us)", "Wait Time(us)", "Block Num", "Mix Block Num", "HF32 Eligible",
]  # fmt: skip
_CORES = ("aic", "aiv")
_TIMES = {
    "aic": ["aicore_time(us)", "aic_total_cycles"],
    "aiv": ["aiv_time(us)", "aiv_total_cycles"],
}
NO_MODEL = 4294967295

# Columns of each set of counters, of the cube core and of the vector core.
COUNTERS: dict[str, dict[str, list[str]]] = {
    "ACL_AICORE_PIPE_UTILIZATION": {
        "aic": [
            f"aic_{unit}_{kind}" for unit in ("mac", "scalar", "mte1", "mte2", "fixpipe") for kind in ("time(us)", "ratio")
        ] + ["aic_icache_miss_rate"],
        "aiv": [
            f"aiv_{unit}_{kind}" for unit in ("vec", "scalar", "mte2", "mte3") for kind in ("time(us)", "ratio")
        ] + ["aiv_icache_miss_rate"],
    },
    "ACL_AICORE_ARITHMETIC_UTILIZATION": {
        "aic": ["aic_mac_fp16_ratio", "aic_mac_int8_ratio", "aic_cube_fops"],
        "aiv": [f"aiv_vec_{t}_ratio" for t in ("fp32", "fp16", "int32", "misc")] + ["aiv_vector_fops"],
    },
    "ACL_AICORE_MEMORY_BANDWIDTH": {
        core: [
            f"{core}_{place}_{way}_bw{unit}"
            for place, unit in ((first, "(GB/s)"), ("main_mem", "(GB/s)"), ("l2", ""))
            for way in ("read", "write")
        ]
        for core, first in (("aic", "l1"), ("aiv", "ub"))
    },
    "ACL_AICORE_L0B_AND_WIDTH": {
        "aic": [f"aic_{place}_{way}_bw(GB/s)" for place in ("l0a", "l0b") for way in ("read", "write")]
        + ["aic_l0c_read_bw_cube(GB/s)", "aic_l0c_write_bw_cube(GB/s)"],
        "aiv": [],
    },
    "ACL_AICORE_MEMORY_UB": {
        "aic": [],
        "aiv": [f"aiv_ub_{way}_bw_{unit}(GB/s)" for unit in ("vector", "scalar") for way in ("read", "write")],
    },
    "ACL_AICORE_RESOURCE_CONFLICT_RATIO": {
        "aic": [],
        "aiv": [f"aiv_vec_{what}_cflt_ratio" for what in ("bankgroup", "bank", "resc")],
    },
    "ACL_AICORE_L2_CACHE": {
        core: [f"{core}_write_cache_hit", f"{core}_write_cache_miss_allocate"]
        + [f"{core}_r{r}_read_cache_{what}" for r in (0, 1) for what in ("hit", "miss_allocate")]
        for core in _CORES
    },
    "ACL_AICORE_MEMORY_ACCESS": {
        core: [
            f"{core}_{what}_datas(KB)"
            for what in ("read_main_memory", "write_main_memory", *own)
        ]
        for core, own in (("aic", ("GM_to_L1", "L0C_to_L1", "L0C_to_GM")), ("aiv", ("GM_to_UB", "UB_to_GM")))
    },
}  # fmt: skip


def counters(metrics: str) -> list[str]:
    """The columns that a set of counters adds."""
    chosen = COUNTERS.get(metrics)
    if chosen is None:
        return []
    columns = [name for core in _CORES for name in _TIMES[core] + chosen[core]]
    return [*columns, "cube_utilization(%)"] if metrics.endswith("PIPE_UTILIZATION") else columns


def shapes(values: list[Any]) -> str:
    return '"' + ";".join(",".join(map(str, shape)) for shape, _, _ in values) + '"'


def dtypes(values: list[Any]) -> str:
    return ";".join(dtype_name(dtype) for _, dtype, _ in values)


def formats(values: list[Any]) -> str:
    return ";".join(format_name(number) for _, _, number in values)


def write(model: Model, out: Path) -> None:
    if not model.with_npu:
        return
    extra = counters(model.experimental.get("_aic_metrics", "")) if model.detailed else []
    headers = [*_LONG, *_SHAPES, "Context ID", *extra] if model.detailed else [*_SHORT, *_SHAPES]
    if model.steps:
        headers = ["Step Id", *headers]
    _csv.write(out / NAME, headers, _rows(model, len(extra)))


def _rows(model: Model, extra: int) -> Iterator[list[Any]]:
    row = _long if model.detailed else _short
    for task in model.kernels:
        cells = row(task) + [NA] * extra
        if model.steps:
            step = model.step_at(task.start)
            cells.insert(0, "" if step is None else step.number)
        yield cells
    for name, one in model.named_communications:
        span = [stamp(one.start_ns), us(one.end_ns - one.start_ns), "0.000"]
        if model.detailed:
            cells = [
                one.device,
                NO_MODEL,
                NA,
                NA,
                name,
                f"hcom_{one.name}_",
                NA,
                "COMMUNICATION",
                *span,
            ]
            cells += [NA] * (3 + len(_SHAPES) + 1 + extra)
        else:
            cells = [one.device, name, NA, "COMMUNICATION", *span, *[NA] * (1 + len(_SHAPES))]
        if model.steps:
            step = model.step_at(one.start_ns)
            cells.insert(0, "" if step is None else step.number)
        yield cells


def _short(task: Task) -> list[Any]:
    times = [stamp(task.start), us(task.duration), us(task.wait)]
    return [task.device, task.kernel, NA, task.core, *times, *[NA] * (1 + len(_SHAPES))]


def _long(task: Task) -> list[Any]:
    return [
        task.device, NO_MODEL, task.number, task.stream, task.kernel, task.type, NA, task.core, stamp(task.start),
        us(task.duration), us(task.wait), NA, NA, NA,
        shapes(task.inputs), dtypes(task.inputs), formats(task.inputs),
        shapes(task.outputs), dtypes(task.outputs), formats(task.outputs), NA,
    ]  # fmt: skip
