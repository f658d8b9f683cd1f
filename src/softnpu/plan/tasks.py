"""What the clock knows of a run: device tasks in the order in which the host launched them.

Nothing here needs PyTorch, so that a list of tasks can also be written by hand or by a formula.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_BITS = {
    "bool": 8,
    "uint8": 8,
    "int8": 8,
    "int16": 16,
    "uint16": 16,
    "int32": 32,
    "uint32": 32,
    "int64": 64,
    "uint64": 64,
    "float16": 16,
    "bfloat16": 16,
    "float32": 32,
    "float64": 64,
    "complex32": 32,
    "complex64": 64,
    "complex128": 128,
    "float8_e4m3fn": 8,
    "float8_e5m2": 8,
    "float8_e8m0fnu": 8,
    "hifloat8": 8,
    "float4_e2m1fn_x2": 8,
    "int4": 4,
    "float4": 4,
    "quint4x2": 8,
}


def bits(dtype: str) -> int:
    """The size of one element of `dtype` (PyTorch's name, without "torch.")."""
    try:
        return _BITS[dtype]
    except KeyError:
        raise ValueError(f"the size of dtype {dtype!r} is not known to the clock") from None


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What the clock needs of a tensor."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return -(-self.numel * bits(self.dtype) // 8)


@dataclass(frozen=True, slots=True)
class Task:
    """One device task.

    name: "aten::mm", "npu::npu_fusion_attention", "hccl::all_reduce", "copy".
    kind: "kernel", "copy" or "collective".
    attributes: scalar arguments that change the cost (num_heads, sparse_mode, ...), by name.
    waits: indexes of earlier tasks, on other streams, that end before this one begins (events, stream waits).
    host_waits: the host waited for the end of this task before it launched the next one (item, synchronize).
    ranks, peers: of a collective, or of a kernel that communicates, the size of its group and the global ranks in it.
    phase: "forward", "backward", "optimizer", or "" where it is not known.
    """

    name: str
    kind: str
    device: int
    stream: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    attributes: tuple[tuple[str, object], ...] = ()
    waits: tuple[int, ...] = ()
    host_waits: bool = False
    ranks: int = 1
    peers: tuple[int, ...] = ()
    phase: str = ""

    def attribute(self, name: str, default: object = None) -> object:
        """The attribute of this name, or `default`."""
        return next((value for key, value in self.attributes if key == name), default)
