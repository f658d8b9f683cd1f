"""A profile goes to the test's own directory, and nothing is left of it in the process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from torch_npu.profiler import dynamic_profile, profiler_interface
from torch_npu.profiler._non_intrusive_profile import _NonIntrusiveProfile
from torch_npu.profiler._profiler_path_creator import ProfPathCreator


@pytest.fixture(autouse=True)
def _clean(tmp_path, monkeypatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    for variable in ("RANK", "ASCEND_WORK_PATH", "PROF_CONFIG_PATH", "TASK_QUEUE_ENABLE"):
        monkeypatch.delenv(variable, raising=False)
    dynamic_profile._reset()
    yield
    run = profiler_interface.running()
    if run is not None:
        run.stop_trace()
        run.finalize_trace()
    _NonIntrusiveProfile.remove()
    dynamic_profile._reset()
    ProfPathCreator().init()
