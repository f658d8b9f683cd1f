"""What calls cost: small operators beside the CPU device's, operators written in Python, and the import."""

from __future__ import annotations

import atexit
import functools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

import torch_npu
from benchmarks.core import both
from benchmarks.harness import Case, Goal, Versus
from torch_npu.ops._registry import operators

SMALL = Goal(1.2, mean=True)
CALL_SECONDS = 25e-6
IMPORT = Goal(1.3)


def cases() -> Iterator[Case]:
    yield from small()
    yield from over_kernel()
    yield imports()


def _small() -> dict[str, Callable[..., Any]]:
    """50 operators on three 32 x 32 matrices."""
    names = (
        "exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "relu", "sin", "abs", "neg", "square", "reciprocal",
        "floor", "erf", "sum", "max", "norm", "clone", "isnan",
    )  # fmt: skip
    pairs = ("add", "sub", "mul", "div", "maximum", "pow", "eq", "lt", "atan2")
    unary = {n: lambda a, b, c, f=getattr(torch, n): f(a) for n in names}
    binary = {n: lambda a, b, c, f=getattr(torch, n): f(a, b) for n in pairs}
    return unary | binary | {
        "where": lambda a, b, c: torch.where(a > 0.5, b, c), "matmul": lambda a, b, c: a @ c,
        "addmm": torch.addmm, "linear": lambda a, b, c: F.linear(a, c, b[0]), "gelu": lambda a, b, c: F.gelu(a),
        "silu": lambda a, b, c: F.silu(a), "softmax": lambda a, b, c: a.softmax(-1),
        "mean": lambda a, b, c: a.mean(-1), "amax": lambda a, b, c: a.amax(-1),
        "argmax": lambda a, b, c: a.argmax(-1), "cumsum": lambda a, b, c: a.cumsum(-1),
        "cat": lambda a, b, c: torch.cat([a, b, c]), "stack": lambda a, b, c: torch.stack([a, b]),
        "transpose": lambda a, b, c: a.t().contiguous(), "layer_norm": lambda a, b, c: F.layer_norm(a, (32,)),
        "clamp": lambda a, b, c: a.clamp(0.2, 0.8), "addcmul": torch.addcmul, "lerp": torch.lerp,
        "topk": lambda a, b, c: a.topk(4)[0], "slice": lambda a, b, c: a[4:8, ::2] + 1,
        "to": lambda a, b, c: a.to(torch.float16), "zeros_like": lambda a, b, c: torch.zeros_like(a),
    }  # fmt: skip


def small() -> Iterator[Case]:
    tensors = torch.rand(32, 32) + 0.1, torch.rand(32, 32) + 0.1, torch.randn(32, 32)
    for name, body in _small().items():
        yield both("small operators", name, body, SMALL, *tensors)


def over_kernel() -> Iterator[Case]:
    """An operator that Python defines: its call less the time of its kernel, in microseconds."""
    x, g = torch.randn(4, 8), torch.ones(8)
    heads = tuple(torch.randn(1, 2, 4, 64) for _ in range(3))
    some = {
        "npu_fast_gelu": (x,), "npu_swiglu": (x,), "npu_rms_norm": (x, g), "npu_rotary_mul": heads,
        "npu_linear": (x, torch.randn(3, 8)),
    }  # fmt: skip
    for name, args in some.items():
        yield Case(
            "Python operators", f"{name}, call over its kernel", functools.partial(_over, name, args),
            others={"limit": Versus(CALL_SECONDS, Goal(1.0), "25 us")}, reads=True,
        )  # fmt: skip


def _over(name: str, args: tuple[torch.Tensor, ...], calls: int = 50, rounds: int = 5) -> float:
    kernel = operators[name].as_function("body")
    public, mine = getattr(torch_npu, name), tuple(a.npu() for a in args)
    return statistics.median(
        _seconds(public, mine, calls) - _seconds(kernel, args, calls) for _ in range(rounds)
    )


def _seconds(function: Callable[..., Any], args: tuple[Any, ...], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        function(*args)
    return (time.perf_counter() - start) / calls


def imports() -> Case:
    """`import torch_npu`, which imports torch, beside `import torch`: in new processes, with compiled files."""

    @functools.cache
    def environment() -> dict[str, str]:
        folder = tempfile.TemporaryDirectory()
        atexit.register(folder.cleanup)
        kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        # torch by itself would import the device of an installed package
        return {**kept, "PYTHONPYCACHEPREFIX": folder.name, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}

    def run(code: str) -> str:
        command = [sys.executable, "-c", code]
        done = subprocess.run(
            command, env=environment(), capture_output=True, text=True, check=True
        )
        return done.stdout

    def seconds(module: str) -> float:
        timer = "from time import perf_counter as now; start = now()"
        return float(run(f"{timer}; import {module}; print(now() - start)"))

    def check() -> None:
        started = run("import torch_npu; from softnpu import _C; print(_C.started())").strip()
        assert started == "False", "the import starts the device"

    mine, theirs = (functools.partial(seconds, m) for m in ("torch_npu", "torch"))
    return Case(
        "import", "import torch_npu", mine, theirs, IMPORT, check, "import torch", reads=True
    )
