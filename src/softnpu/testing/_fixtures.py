"""The fixtures of the plugin, and what goes with them: the search for leaked device memory, a profile of a part."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from softnpu.testing import _settings
from softnpu.testing._ranks import Ranks

LIVE_BEFORE = pytest.StashKey[Any]()  # a set of (device, address)
RANKS = pytest.StashKey[Ranks]()


@pytest.fixture
def npu(request: pytest.FixtureRequest) -> Iterator[Any]:
    """`torch.device("npu")` with fresh statistics, seeds and no faults; leaked device memory is an error."""
    import torch

    import torch_npu  # noqa: F401
    from softnpu import faults

    faults.clear()
    torch.manual_seed(0)
    torch.npu.manual_seed_all(0)
    gc.collect()
    for device in range(torch.npu.device_count()):
        torch.npu.reset_peak_memory_stats(device)
        torch.npu.reset_accumulated_memory_stats(device)
    request.node.stash[LIVE_BEFORE] = set()
    yield torch.device("npu")
    faults.clear()


@pytest.fixture
def npu_faults() -> Iterator[Any]:
    """`softnpu.faults`; what a test injects is gone after it."""
    import torch_npu  # noqa: F401
    from softnpu import faults

    faults.clear()
    yield faults
    faults.clear()


@pytest.fixture
def npu_ranks(request: pytest.FixtureRequest) -> Ranks:
    """`@npu_ranks(n)` runs a function of the test on n processes over hccl."""
    request.node.stash[RANKS] = Ranks(request.node)
    return request.node.stash[RANKS]


class NpuProfile:
    """A profile: `path` is its directory, `operators` and `kernels` are its tables (rows as dictionaries)."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = Path()
        self.operators: list[dict[str, Any]] = []
        self.kernels: list[dict[str, Any]] = []

    def count(self, kernel: str) -> int:
        """How often a kernel ran, by its name on the device, e.g. MatMulV2."""
        return sum(row["count"] for row in self.kernels if row["name"] == kernel)

    def _read(self) -> None:
        from softnpu.report import data

        (self.path,) = data.find(self.directory)
        profile = data.Profile.read(self.path)
        self.operators, self.kernels = profile.operators, profile.kernels


@pytest.fixture
def npu_profile(tmp_path: Path) -> Any:
    """`with npu_profile() as profile:` profiles a part of the test; the tables are there after it."""
    numbers = iter(range(1_000_000))

    @contextlib.contextmanager
    def profiling(**options: Any) -> Iterator[NpuProfile]:
        from torch_npu import profiler

        found = NpuProfile(tmp_path / f"profile{next(numbers)}")
        activities = [profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.NPU]
        handler = profiler.tensorboard_trace_handler(str(found.directory))
        with profiler.profile(activities=activities, on_trace_ready=handler, **options):
            yield found
        found._read()

    return profiling


# --- leaked device memory -------------------------------------------------------------------------------


def before_call(item: pytest.Item) -> None:
    if LIVE_BEFORE in item.stash:
        gc.collect()
        item.stash[LIVE_BEFORE] = set(_live())


def after_teardown(item: pytest.Item, failed: bool) -> None:
    """Everything that the test made is gone once its fixtures are; a failed test's traceback keeps its tensors."""
    if LIVE_BEFORE not in item.stash or failed:
        return
    if getattr(item, "funcargs", None):
        item.funcargs.clear()  # type: ignore[attr-defined]
    for name in ("_obj", "_instance"):  # the object of a test class; made again where anyone asks
        item.__dict__.pop(name, None)
    gc.collect()
    live = _live()
    left = {block: live[block] for block in live.keys() - item.stash[LIVE_BEFORE]}
    total = sum(left.values())
    if total > _settings.allowed_leak(item):
        biggest = sorted(left.items(), key=lambda entry: -entry[1])[:5]
        lines = [
            f"  npu:{device} {size} bytes at {address:#x}" for (device, address), size in biggest
        ]
        pytest.fail(
            f"the test leaves {total} bytes of device memory in {len(left)} blocks behind:\n"
            + "\n".join(lines)
            + "\npytest.mark.npu(leak='1MiB') allows as much, e.g. for a cache that is made once",
            pytrace=False,
        )


def _live() -> dict[tuple[int, int], int]:
    """(device, address) -> size of the blocks that tensors hold."""
    torch = sys.modules["torch"]
    found: dict[tuple[int, int], int] = {}
    for segment in torch.npu.memory_snapshot():
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                found[segment["device"], block.get("address", address)] = block["size"]
            address += block["size"]
    return found
