"""Inputs on the host and on the device, and decorators that skip a test."""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import json
import os
import threading
import unittest
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

import torch_npu


@contextlib.contextmanager
def freeze_rng_state() -> Iterator[None]:
    """The host's random state after the block is what it was before."""
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)


def iter_indices(tensor: torch.Tensor) -> Any:
    """Every index of a tensor."""
    if tensor.dim() == 0:
        return range(0)
    if tensor.dim() == 1:
        return range(tensor.size(0))
    return itertools.product(*(range(s) for s in tensor.size()))


def is_iterable(obj: Any) -> bool:
    try:
        iter(obj)
    except TypeError:
        return False
    return True


def get_npu_device() -> str:
    """The device that tests run on: SET_NPU_DEVICE's number, else npu:0."""
    return f"npu:{os.environ.get('SET_NPU_DEVICE', '0')}"


def set_npu_device() -> str:
    """Makes the tests' device the current one and returns its name."""
    device = get_npu_device()
    torch.npu.set_device(device)
    return device


def _pair(values: np.ndarray, npu_format: int, device: Any) -> tuple[torch.Tensor, torch.Tensor]:
    on_host = torch.from_numpy(values)
    on_device = on_host.to(get_npu_device() if device is None else device)
    if npu_format != -1:
        on_device = torch_npu.npu_format_cast(on_device, npu_format)
    return on_host, on_device


def create_common_tensor(
    item: Sequence[Any], minValue: float, maxValue: float, device: Any = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same uniform numbers on the host and on the device; `item` starts with (numpy dtype, format or -1, shape)."""
    dtype, npu_format, shape = item[:3]
    values = np.random.uniform(minValue, maxValue, shape).astype(dtype)
    return _pair(values, npu_format, device)


def create_dtype_tensor(
    shape: Sequence[int],
    dtype: torch.dtype,
    npu_format: int = -1,
    min_value: float = -5,
    max_value: float = 5,
    no_zero: bool = False,
    device: Any = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same numbers of a torch dtype on the host and on the device; `no_zero` puts 1 for 0."""
    if dtype == torch.bool:
        values = np.random.randint(0, 2, size=shape).astype(bool)
    elif dtype == torch.half:
        values = np.random.uniform(min_value, max_value, shape).astype(np.float16)
    elif dtype == torch.float:
        values = np.random.uniform(min_value, max_value, shape).astype(np.float32)
    else:
        values = np.random.randint(int(min_value), int(max_value) + 1, size=shape).astype(np.int32)
    if no_zero:
        values = np.where(values != 0, values, np.ones_like(values))
    is_float = dtype in (torch.float, torch.half)
    return _pair(values, npu_format if is_float else -1, device)


def test_2args_broadcast(fn: Callable[..., torch.Tensor]) -> list[list[np.ndarray]]:
    """Results of a function of two arguments on host and device, for two cases of broadcasting."""
    results = []
    for shape in ((1, 1, 1), (4, 5)):
        x = torch.from_numpy(np.random.rand(2, 3, 4, 5).astype(np.float32))
        y = torch.from_numpy(np.random.rand(*shape).astype(np.float32))
        device = get_npu_device()
        on_device = fn(x.to(device), y.to(device)).cpu().numpy()
        results.append([fn(x, y).numpy(), on_device])
    return results


test_2args_broadcast.__test__ = False  # type: ignore[attr-defined]  # a helper, whatever its name


def check_operators_in_prof(
    expected_operators: list[str], prof: Any, unexpected_operators: Sequence[str] | None = None
) -> bool:
    """Whether a profile has all of the expected operators and none of the unexpected ones."""
    seen = {item.key.replace("cached_", "") for item in prof.key_averages()}
    return set(expected_operators) <= seen and not seen & set(unexpected_operators or ())


def _skips(why: Callable[[], str | None]) -> Callable[..., Any]:
    """A decorator of a test method that skips it when `why` gives a reason."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            reason = why()
            if reason is not None:
                raise unittest.SkipTest(reason)
            return function(self, *args, **kwargs)

        return run

    return decorate


class SupportedDevices:
    """Skips a test unless the chip is one of these, by the start of its name: Ascend910A, Ascend910B, ..."""

    def __init__(self, supported_devices: list[str]) -> None:
        self.supported_devices = supported_devices

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        def why() -> str | None:
            name = torch_npu.npu.get_device_name(0)
            length = (
                12 if name.startswith("Ascend910_") else 9 if name.startswith("Ascend950") else 10
            )
            if name[:length] in self.supported_devices:
                return None
            return f"Only run on {self.supported_devices!r}, current device is {name[:length]}."

        return _skips(why)(fn)


class SkipIfNotGteCANNVersion:
    """Skips a test unless a part of CANN has at least this version."""

    def __init__(self, base_version: str, module: str = "CANN") -> None:
        self.base_version, self.module = base_version, module

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        def why() -> str | None:
            if torch_npu.npu.utils._is_gte_cann_version(self.base_version, module=self.module):
                return None
            current = torch_npu.npu.utils.get_cann_version(module=self.module)
            return f"Only run on {self.base_version} or greater, current cann version is {current}."

        return _skips(why)(fn)


class SkipIfNotRegistered:
    """Upstream asks Caffe2 for an operator; PyTorch has no Caffe2 any more, so that every such test is skipped."""

    def __call__(self, message: str) -> Callable[..., Any]:
        return unittest.skip("Cannot import `caffe2.python.core`")


class Baseline:
    """Numbers by name in a JSON file: how long tests took."""

    def __init__(self, baselineFile: str) -> None:
        self._file, self._lock = baselineFile, threading.Lock()
        self._baseline: dict[str, Any] = {}
        if os.path.exists(baselineFile):
            with open(baselineFile, encoding="utf-8") as f:
                self._baseline = json.load(f)

    def get_baseline(self, resourceId: str) -> Any:
        return self._baseline.get(resourceId)

    def set_baseline(self, resourceId: str, baseline: Any) -> None:
        with self._lock:
            self._baseline[resourceId] = baseline

    def save_baseline(self) -> None:
        with self._lock, open(self._file, "w", encoding="utf-8") as f:
            json.dump(self._baseline, f)


#: whether tests are timed against the file of times, and where it is
PERF_TEST_ENABLE = os.environ.get("PERF_TEST_ENABLE", "").lower() in ("1", "true", "on", "y", "yes")
PERF_BASELINE_FILE = os.environ.get("PERF_BASELINE_FILE", "perf_baseline.json")
PerfBaseline = Baseline(PERF_BASELINE_FILE)


@atexit.register
def dump_baseline() -> None:
    """Writes the file of times, where tests are timed."""
    if PERF_TEST_ENABLE:
        PerfBaseline.save_baseline()


class SkipIfNoLapack:
    """Skips a test where PyTorch has no LAPACK."""

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        return _skips(lambda: None if torch._C.has_lapack else "PyTorch compiled without Lapack")(
            fn
        )


PERF_TEST_ENABLE = os.environ.get("PERF_TEST_ENABLE", "").upper() in ("ON", "1", "YES", "TRUE", "Y")


@functools.lru_cache
def get_cycles_per_ms() -> float:
    """How many cycles of torch.npu._sleep make a millisecond."""
    start, end = (torch.npu.Event(enable_timing=True) for _ in range(2))
    start.record()
    torch.npu._sleep(1_000_000)
    end.record()
    end.synchronize()
    return 1_000_000 / start.elapsed_time(end)
