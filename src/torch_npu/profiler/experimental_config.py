"""torch_npu.profiler._ExperimentalConfig: what is collected beyond operators, and the values that it takes."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

from torch_npu.profiler._messages import info, warn

__all__ = [
    "AiCMetrics",
    "ExportType",
    "HostSystem",
    "ProfilerLevel",
    "_ExperimentalConfig",
    "supported_ai_core_metrics",
    "supported_export_type",
    "supported_profiler_level",
]


class ProfilerLevel:
    """How much is collected; each level adds to the one before."""

    Level0 = "Level0"
    Level1 = "Level1"
    Level2 = "Level2"
    Level_none = "Level_none"


class AiCMetrics:
    """Sets of AI core counters. They have columns here and no values: there is no AI core."""

    PipeUtilization = "ACL_AICORE_PIPE_UTILIZATION"
    ArithmeticUtilization = "ACL_AICORE_ARITHMETIC_UTILIZATION"
    Memory = "ACL_AICORE_MEMORY_BANDWIDTH"
    MemoryL0 = "ACL_AICORE_L0B_AND_WIDTH"
    MemoryUB = "ACL_AICORE_MEMORY_UB"
    ResourceConflictRatio = "ACL_AICORE_RESOURCE_CONFLICT_RATIO"
    L2Cache = "ACL_AICORE_L2_CACHE"
    MemoryAccess = "ACL_AICORE_MEMORY_ACCESS"
    AiCoreNone = "ACL_AICORE_NONE"


class ExportType:
    """Result files: `Text` writes JSON and CSV files beside the databases, `Db` the databases alone."""

    Db = "db"
    Text = "text"


class HostSystem:
    """What of the host is sampled."""

    CPU = "cpu"
    MEM = "mem"
    DISK = "disk"
    NETWORK = "network"
    OSRT = "osrt"
    NUMA = "numa"


def _values(names: type) -> set[str]:
    return {value for name, value in vars(names).items() if not name.startswith("_")}


def supported_profiler_level() -> set[str]:
    return _values(ProfilerLevel)


def supported_ai_core_metrics() -> set[str]:
    return _values(AiCMetrics)


def supported_export_type() -> set[str]:
    return _values(ExportType)


class _ExperimentalConfig:
    """Extended settings of a profile. A wrong value is replaced by the default, with a warning.

    Args:
        profiler_level: a `ProfilerLevel`; Level_none collects mstx marks only.
        aic_metrics: an `AiCMetrics`; from Level1 on.
        l2_cache: write l2_cache.csv and soc_pmu.csv.
        msprof_tx: the old name of `mstx`.
        mstx: collect the marks and ranges of torch.npu.mstx.
        data_simplification: after an analysis, delete from the directories PROF_* what tools have made of the raw data.
        record_op_args: write the operators' arguments to the directory `..._ascend_pt_op_args`.
        op_attr: keep operators' arguments that are no tensors, as attrInfo of COMPUTE_TASK_INFO; in databases only.
        gc_detect_threshold: record collections of Python's garbage that last at least so many milliseconds.
        export_type: an `ExportType` or a list of them.
        host_sys: a list of `HostSystem` values; OSRT and NUMA are answered with a warning.
        mstx_domain_include: record marks of these domains only.
        mstx_domain_exclude: record no marks of these domains.
        sys_io: write nic.csv and roce.csv.
        sys_interconnection: write hccs.csv and pcie.csv.

    Differs from upstream: OSRT (system calls) and NUMA of host_sys collect nothing and warn; what l2_cache, sys_io,
    sys_interconnection and aic_metrics would count has columns and N/A.
    """

    def __init__(
        self,
        profiler_level: str = ProfilerLevel.Level0,
        aic_metrics: str = AiCMetrics.PipeUtilization,
        l2_cache: bool = False,
        msprof_tx: bool = False,
        mstx: bool = False,
        data_simplification: bool = True,
        record_op_args: bool = False,
        op_attr: bool = False,
        gc_detect_threshold: float | None = None,
        export_type: str | list[str] = ExportType.Text,
        host_sys: list[str] | None = None,
        mstx_domain_include: list[str] | None = None,
        mstx_domain_exclude: list[str] | None = None,
        sys_io: bool = False,
        sys_interconnection: bool = False,
    ) -> None:
        self._profiler_level = _one_of(
            "profiler_level", profiler_level, supported_profiler_level(), ProfilerLevel.Level0
        )
        self._aic_metrics = self._metrics(aic_metrics)
        self._l2_cache = _flag("l2_cache", l2_cache)
        self._msprof_tx = _flag("msprof_tx", msprof_tx)
        self._mstx = _flag("mstx", mstx)
        if self._msprof_tx:
            warnings.warn("msprof_tx is the old name of the parameter mstx.", stacklevel=2)
        if self._profiler_level == ProfilerLevel.Level_none and not self.tx_enabled:
            warn("Level_none collects marks only: mstx is switched on.")
            self._mstx = True
        self._data_simplification = _flag("data_simplification", data_simplification, True)
        self.record_op_args = _flag("record_op_args", record_op_args)
        self._export_type = _export_types(export_type)
        self._op_attr = _flag("op_attr", op_attr)
        if self._op_attr and ExportType.Db not in self._export_type:
            warn("op_attr has an effect with export_type Db only; it is switched off.")
            self._op_attr = False
        if self._op_attr and self._profiler_level == ProfilerLevel.Level_none:
            warn("op_attr has no effect with profiler_level Level_none; it is switched off.")
            self._op_attr = False
        self._gc_detect_threshold = _threshold(gc_detect_threshold)
        self._host_sys = _list("host_sys", host_sys, _values(HostSystem))
        for kind in sorted({HostSystem.OSRT, HostSystem.NUMA}.intersection(self._host_sys)):
            warn(
                f"host_sys {kind!r} has no effect: tools of the kernel count it, and none is used here."
            )
        self._mstx_domain_include, self._mstx_domain_exclude = self._domains(
            mstx_domain_include, mstx_domain_exclude
        )
        self._sys_io = _flag("sys_io", sys_io)
        self._sys_interconnection = _flag("sys_interconnection", sys_interconnection)

    def _metrics(self, metrics: Any) -> str:
        if self._profiler_level in (ProfilerLevel.Level0, ProfilerLevel.Level_none):
            if metrics not in (
                AiCMetrics.AiCoreNone,
                AiCMetrics.PipeUtilization,
            ):  # the default is quiet
                warn("aic_metrics needs profiler_level Level1 or Level2; AiCoreNone is used.")
            return AiCMetrics.AiCoreNone
        return _one_of(
            "aic_metrics", metrics, supported_ai_core_metrics(), AiCMetrics.PipeUtilization
        )

    def _domains(self, include: Any, exclude: Any) -> tuple[list[str], list[str]]:
        if not self.tx_enabled:
            if include or exclude:
                warn("mstx_domain_include and mstx_domain_exclude have an effect with mstx only.")
            return [], []
        chosen = _list("mstx_domain_include", include)
        left_out = _list("mstx_domain_exclude", exclude)
        if chosen and left_out:
            warn("mstx_domain_include is given, so mstx_domain_exclude has no effect.")
            left_out = []
        return chosen, left_out

    @property
    def export_type(self) -> list[str]:
        return self._export_type

    @property
    def with_gc(self) -> bool:
        return self._gc_detect_threshold is not None

    @property
    def gc_detect_threshold(self) -> float | None:
        return self._gc_detect_threshold

    @property
    def tx_enabled(self) -> bool:
        return self._msprof_tx or self._mstx


def _flag(name: str, value: Any, default: bool = False) -> bool:
    if isinstance(value, bool):
        return value
    warn(f"Invalid parameter {name}: expected a bool, received {value!r}; {default} is used.")
    return default


def _one_of(name: str, value: Any, valid: Iterable[str], default: str) -> str:
    if isinstance(value, str) and value in valid:
        return value
    warn(f"Invalid parameter {name}: {value!r} is not known; {default} is used.")
    return default


def _export_types(value: Any) -> list[str]:
    types = [value] if isinstance(value, str) else value
    if not isinstance(types, list) or not types or any(t not in ("text", "db") for t in types):
        warn(
            f"Invalid parameter export_type: expected text or db, received {value!r}; text is used."
        )
        return [ExportType.Text]
    return sorted(set(types))


def _threshold(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
        warn(
            "Invalid parameter gc_detect_threshold: expected a number of milliseconds that is not negative, "
            f"received {value!r}; no collections are recorded."
        )
        return None
    if value == 0:
        info("gc_detect_threshold is 0: every garbage collection is recorded.")
    return value


def _list(name: str, value: Any, valid: Iterable[str] | None = None) -> list[str]:
    if not value:
        return []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        warn(
            f"Invalid parameter {name}: expected a list of str, received {value!r}; it is ignored."
        )
        return []
    if valid is not None and not all(item in valid for item in value):
        warn(f"Invalid parameter {name}: expected values of {sorted(valid)}, received {value!r}.")
        return []
    return sorted(set(value))
