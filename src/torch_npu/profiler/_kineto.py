"""torch_npu.profiler._KinetoProfile: a profiler that is started and stopped by hand, and exports single files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from sys import getsizeof
from typing import Any

from torch_npu.profiler._activity import ProfilerActivity
from torch_npu.profiler._messages import tolerant, warn
from torch_npu.profiler._profiler_path_creator import ProfPathCreator
from torch_npu.profiler.experimental_config import _ExperimentalConfig
from torch_npu.profiler.profiler_interface import _ProfInterface
from torch_npu.utils._path_manager import PathManager

_MAX_METADATA = 50 * 1024  # bytes
_MAX_TEXT = 4096  # characters
_CPU_TIME, _NPU_TIME = "self_cpu_time_total", "self_npu_time_total"


class _KinetoProfile:
    """A profiler that is started and stopped by hand, and exports single files.

    Args:
        activities: ProfilerActivity.CPU, ProfilerActivity.NPU or both, the default.
        record_shapes: keep shapes and data types of operators' inputs.
        profile_memory: record device memory.
        with_stack: keep the Python stack of each operator.
        with_flops: count floating point operations of matrix products and convolutions.
        with_modules: record calls of modules.
        experimental_config: what else is collected.
        custom_trace_id_callback: gives the profile's id, which profiler_metadata.json holds.

    As on the card, wrong values are replaced by defaults with a warning and no failure of the profiler is an exception.
    """

    def __init__(
        self,
        *,
        activities: Iterable[ProfilerActivity] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
        experimental_config: _ExperimentalConfig | None = None,
        custom_trace_id_callback: Callable[[], str] | None = None,
    ) -> None:
        self.metadata: dict[str, Any] = {}
        self.prof_if = _ProfInterface(
            activities=activities,
            record_shapes=record_shapes,
            profile_memory=profile_memory,
            with_stack=with_stack,
            with_flops=with_flops,
            with_modules=with_modules,
            experimental_config=experimental_config,
            metadata=self.metadata,
            custom_trace_id_callback=custom_trace_id_callback,
        )

    def __del__(self) -> None:
        if hasattr(self, "prof_if") and self.prof_if.prof_path:
            ProfPathCreator().delete_export_only_prof()

    @tolerant
    def start(self) -> None:
        ProfPathCreator().init(export_only_mode=True)
        self.prof_if.init_trace()
        self.prof_if.start_trace()

    @tolerant
    def stop(self) -> None:
        self.prof_if.stop_trace()
        self.prof_if.finalize_trace()

    # --- marks ---------------------------------------------------------------------------------------

    @tolerant
    def add_metadata(self, key: str, value: str) -> None:
        """Adds a text to profiler_metadata.json."""
        if self._metadata_fits(key, value):
            self.metadata[key] = value

    @tolerant
    def add_metadata_json(self, key: str, value: str) -> None:
        """Adds a value, given as JSON, to profiler_metadata.json."""
        if not self._metadata_fits(key, value):
            return
        try:
            self.metadata[key] = json.loads(value)
        except ValueError:
            warn(f"The metadata {key!r} is left out: its value is not JSON.")

    def _metadata_fits(self, key: Any, value: Any) -> bool:
        if not isinstance(key, str) or not isinstance(value, str):
            warn("Metadata is left out: key and value must be str.")
        elif len(key) > _MAX_TEXT or len(value) > _MAX_TEXT:
            warn(f"Metadata is left out: key and value may have {_MAX_TEXT} characters.")
        elif getsizeof(self.metadata) + getsizeof(key) + getsizeof(value) >= _MAX_METADATA:
            warn("Metadata is left out: there is too much of it.")
        else:
            if key in self.metadata:
                warn(f"The metadata {key!r} is given again: the new value counts.")
            return True
        return False

    # --- exports -------------------------------------------------------------------------------------

    @tolerant
    def export_chrome_trace(self, output_path: str) -> None:
        """Writes the timeline to one JSON file."""
        self._export("export_chrome_trace", output_path)

    @tolerant
    def export_stacks(self, output_path: str, metric: str = _CPU_TIME) -> None:
        """Writes stacks with their times, the input of FlameGraph; needs with_stack.

        Args:
            output_path: a file.
            metric: "self_cpu_time_total" or "self_npu_time_total".
        """
        if not self.prof_if.with_stack:
            warn("export_stacks needs with_stack=True.")
            return
        if metric not in (_CPU_TIME, _NPU_TIME):
            warn(f"Invalid parameter metric: {metric!r}; {_CPU_TIME} is used.")
            metric = _CPU_TIME
        self._export("export_stack", output_path, metric=metric)

    @tolerant
    def export_memory_timeline(self, output_path: str, device: str | None = None) -> None:
        """Writes memory by category over time: .html, .json, .json.gz, or every event as raw.json.gz.

        Needs record_shapes, profile_memory, and with_stack or with_modules.
        """
        missing = [
            text
            for text, given in (
                ("record_shapes=True", self.prof_if.record_shapes),
                ("profile_memory=True", self.prof_if.profile_memory),
                ("with_stack=True or with_modules=True", self.prof_if.with_stack or self.prof_if.with_modules),
            )
            if not given
        ]  # fmt: skip
        if missing:
            warn(f"export_memory_timeline needs {', '.join(missing)}.")
            return
        self._export("export_memory_timeline", output_path, device=device or "npu:0")

    def _export(self, kind: str, output_path: str, **options: Any) -> None:
        path = os.path.abspath(os.path.expanduser(output_path))
        PathManager.check_input_file_path(path)
        if not self.prof_if.prof_path:
            warn("There is nothing to export: the profiler was not started.")
            return
        self.prof_if.analyse(kind, path, **options)
