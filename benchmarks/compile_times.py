"""Compile times: a layer of Llama, forward and backward, by TorchAir and by torch.compile without a backend.

Both against Inductor on the CPU device.

Counted is processor time, the compilers that Inductor starts included: it does not depend on what else the machine
does. Cold: no file of an earlier compilation. Warm: the files of one are there, dynamo has forgotten everything.
"""

from __future__ import annotations

import functools
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.harness import Case, Goal

GOAL = Goal(1.2)
WIDTH, HEADS, LENGTH = 64, 4, 16


class Layer(nn.Module):
    """Attention with rotary positions and a gated feed-forward part, each behind an RMS norm."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.norms = nn.ModuleList([nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)])
        self.register_buffer("angles", torch.randn(2, LENGTH, WIDTH // HEADS))

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        cos, sin = self.angles
        left, right = x.chunk(2, -1)
        return x * cos + torch.cat([-right, left], -1) * sin

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch = x.shape[0]
        split = self.qkv(self.norms[0](x)).view(batch, LENGTH, 3, HEADS, -1)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(x.shape))
        gate, up = self.up(self.norms[1](x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


def processor_time() -> float:
    """Of this process and of the children that it has waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def first_step(device: str, backend: str, cold: bool) -> float:
    """Seconds until the first gradients; without `cold` on the files of the call before."""
    from torch._inductor import config
    from torch._inductor.utils import clear_caches

    torch._dynamo.reset()
    folder = os.path.join(tempfile.gettempdir(), f"softnpu-compile-times-{os.getpid()}")
    if cold:
        shutil.rmtree(folder, ignore_errors=True)
        clear_caches()
    before = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
    try:
        with config.patch(compile_threads=1):
            model, x = Layer().to(device), torch.randn(2, LENGTH, WIDTH, device=device)
            start = processor_time()
            torch.compile(model, backend=backend)(x).sum().backward()
            return processor_time() - start
    finally:
        if before is None:
            del os.environ["TORCHINDUCTOR_CACHE_DIR"]
        else:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = before


FORMS = {"TorchAir": ("npu", "npu"), "torch.compile": ("npu", "inductor")}


def cases() -> Iterator[Case]:
    theirs = ("cpu", "inductor")
    for form in (*FORMS.values(), theirs):
        first_step(*form, cold=True)  # what is imported at the first compilation counts for nobody
    for cold in (True, False):
        if not cold:
            for form in (*FORMS.values(), theirs):
                first_step(*form, cold=False)
        for name, form in FORMS.items():
            yield Case(
                "compile times",
                f"{name}, {'cold' if cold else 'warm'}",
                functools.partial(first_step, *form, cold=cold),
                functools.partial(first_step, *theirs, cold=cold),
                GOAL,
                against="inductor on cpu",
                reads=True,
                once=cold,
            )
