"""How much of a kernel's time is arithmetic: 4M elements beside as many in pieces that stay in a core's cache.

A piece is so small that one thread takes it and no memory is waited for; its time, multiplied by the number of pieces
and shared among the threads, is what the kernel would need on memory without cost. A ratio near 1 says that nothing
but fewer instructions would make it faster.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks import limits
from benchmarks.harness import Case, Versus
from benchmarks.kernels import ROWS, WIDTH, matrix
from softnpu import _C

GROUP = "arithmetic"
PIECE = 8  # rows
own = torch.ops.softnpu


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    heads = (t.view(1, 1, -1, 128) for t in (x, cos, sin))
    return own.rotary(*heads, "half")


#: a kernel of matrices, and how many it takes
KERNELS: dict[str, tuple[Callable[..., Any], int]] = {
    "gelu": (lambda x: own.gelu(x, False), 1),
    "gelu backward": (lambda dy, x: own.gelu_backward(dy, x, False), 2),
    "silu": (lambda x: own.swish(x, 1.0), 1),
    "silu backward": (lambda dy, x: own.swish_backward(dy, x, 1.0), 2),
    "mish": (own.mish, 1),
    "swiglu": (lambda x: own.swiglu(x, -1), 1),
    "rotary": (rotary, 3),
    "masked softmax": (lambda x: own.masked_softmax(x, _mask(x.shape), 1.0, -1e4), 1),
    "dynamic quant": (lambda x: own.dynamic_quant(x, None, None, False, False), 1),
    "layer norm": (lambda x: own.layer_norm(x, 1, None, None, 1e-5), 1),
}


@functools.cache
def _mask(shape: torch.Size) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.bool)


def cases() -> Iterator[Case]:
    for dtype in (torch.float32, torch.bfloat16):
        for name, (kernel, inputs) in KERNELS.items():
            yield _case(f"{name}, {str(dtype).removeprefix('torch.')}", kernel, inputs, dtype)


def _case(name: str, kernel: Callable[..., Any], inputs: int, dtype: torch.dtype) -> Case:
    whole = functools.cache(lambda: tuple(matrix(dtype).npu() for _ in range(inputs)))
    piece = functools.cache(lambda: [matrix(dtype, PIECE) for _ in range(inputs)])
    pieces = ROWS / PIECE / torch.get_num_threads()
    moved = (inputs + 1) * ROWS * WIDTH * dtype.itemsize
    others = {
        "in cache": Versus(lambda: kernel(*piece()), times=pieces),
        "limit": limits.copying(moved),
    }
    return Case(GROUP, name, lambda: _C.run_kernel(name, kernel, whole(), {}), others=others)
