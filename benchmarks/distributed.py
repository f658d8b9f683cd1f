"""hccl on npu tensors against gloo on cpu tensors, in the same processes: all_reduce and all_to_all.

This process is rank 0. The other ranks wait for a byte that names the next operation, on either side of a comparison,
so that both pay for it alike.
"""

from __future__ import annotations

import atexit
import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import AllreduceOptions, AllToAllOptions

from benchmarks.harness import Case, Goal

#: bytes, and how long an operation may take by gloo's time
SIZES = {"1 KiB": 1 << 10, "1 MiB": 1 << 20, "64 MiB": 1 << 26}
GOALS = {"1 KiB": Goal(1.05), "1 MiB": Goal(1.05), "64 MiB": Goal(1 / 1.5)}
RANKS = (2, 4, 8)


class Side:
    """One backend and its tensors."""

    def __init__(self, group: Any, device: str) -> None:
        self.group, self.device = group, device

    @functools.cache  # noqa: B019
    def tensors(self, size: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        made = torch.zeros(size // dtype.itemsize, dtype=dtype, device=self.device)
        return made, torch.zeros_like(made)

    def run(self, kind: str, size: int, dtype: torch.dtype) -> torch.Tensor:
        source, target = self.tensors(size, dtype)
        if kind == "all_reduce":
            self.group.allreduce([source], AllreduceOptions()).wait()
            return source
        self.group.alltoall_base(target, source, [], [], AllToAllOptions()).wait()
        return target


#: what a byte on the pipe stands for: side, kind, size, dtype
TABLE = [
    (side, kind, size, dtype)
    for side in ("hccl", "gloo")
    for kind in ("all_reduce", "all_to_all")
    for size in SIZES.values()
    for dtype in (torch.float32, torch.bfloat16)
]


def sides(rank: int, ranks: int, folder: str) -> dict[str, Side]:
    import torch_npu

    torch.set_num_threads(1)
    torch_npu.npu.set_device(rank)
    store = dist.FileStore(f"{folder}/store", ranks)
    gloo = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, ranks)
    hccl = torch_npu._C._distributed_c10d.ProcessGroupHCCL(
        dist.PrefixStore("hccl", store), rank, ranks
    )
    return {"gloo": Side(gloo, "cpu"), "hccl": Side(hccl, "npu")}


class World:
    """Rank 0 and the processes of the others."""

    def __init__(self, ranks: int) -> None:
        folder = tempfile.mkdtemp()
        self.others = []
        for rank in range(1, ranks):
            command = [
                sys.executable,
                "-m",
                "benchmarks.distributed",
                folder,
                str(rank),
                str(ranks),
            ]
            self.others.append(
                subprocess.Popen(
                    command, stdin=subprocess.PIPE, env={**os.environ, "SOFTNPU_QUIET": "1"}
                )
            )
        atexit.register(self.close)
        self.sides = sides(0, ranks, folder)

    def run(self, side: str, kind: str, size: int, dtype: torch.dtype) -> torch.Tensor:
        code = bytes([TABLE.index((side, kind, size, dtype))])
        for other in self.others:
            assert other.stdin is not None
            other.stdin.write(code)
            other.stdin.flush()
        return self.sides[side].run(kind, size, dtype)

    def close(self) -> None:
        for other in self.others:
            assert other.stdin is not None
            other.stdin.close()
        for other in self.others:
            other.wait(30)


def cases() -> Iterator[Case]:
    for ranks in RANKS:
        world = functools.cache(functools.partial(World, ranks))

        def run(world: Callable[[], World], *what: Any) -> torch.Tensor:
            return world().run(*what)

        for kind in ("all_reduce", "all_to_all"):
            for label, size in SIZES.items():
                for dtype in (torch.float32, torch.bfloat16):
                    if dtype == torch.bfloat16 and (kind, label) != ("all_reduce", "64 MiB"):
                        continue
                    what = (kind, size, dtype)
                    yield Case(
                        "distributed",
                        f"{kind}, {label}, {str(dtype)[6:]}, {ranks} ranks",
                        functools.partial(run, world, "hccl", *what),
                        functools.partial(run, world, "gloo", *what),
                        GOALS[label],
                        None,
                        "gloo",
                    )


def follow(folder: str, rank: int, ranks: int) -> None:
    """Another rank: does what the bytes on its standard input say, until there are no more."""
    known = sides(rank, ranks, folder)
    while code := os.read(0, 1):
        side, kind, size, dtype = TABLE[code[0]]
        known[side].run(kind, size, dtype)


if __name__ == "__main__":
    follow(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
