"""Runs for shapes alone (SOFTNPU_COMPUTE=0, `softnpu plan`): nothing is computed, and ranks need no peers.

The device's side is csrc/torch/plan; here are the ways in, and what torch.distributed must not do: meet other processes.
docs/plan-runs.md tells what such a run answers.
"""

from __future__ import annotations

import importlib
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlparse

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

import softnpu
from softnpu import _C, settings
from torch_npu import _plan_pipelining
from torch_npu._patch import Patches

_patches = Patches()


def from_settings() -> None:
    """Begins where the settings ask for it."""
    if not settings.current().compute:
        start(settings.current().routing)


def start(skew: float = 1.0) -> None:
    """From now on nothing is computed.

    Args:
        skew: how often routing and the like choose the most wanted expert, relative to the average.
    """
    if not skew >= 1:
        raise ValueError(f"skew must be at least 1, but is {skew}.")
    _C.plan_start(_packages(), skew)
    if _patches or not dist.is_available():
        return
    meetings = importlib.import_module("torch.distributed.rendezvous")._rendezvous_handlers
    for scheme in ("env", "tcp", "file"):
        _patches.replace_entry(meetings, scheme, _meet)
    _patches.replace(distributed_c10d, "ProcessGroupGloo", _lone_gloo())
    _plan_pipelining.install(_patches)


def stop() -> None:
    """Operators compute again; what was not computed stays so."""
    _C.plan_stop()
    _patches.undo()


def on() -> bool:
    """Whether this is a run for shapes alone."""
    return bool(_C.plan_on())


def _packages() -> list[str]:
    """Folders whose lines are not the program's: messages name the caller's."""
    ours = Path(__file__).parent.parent
    libraries = [Path(torch.__file__).parent, Path(softnpu.__file__).parent]
    libraries += [ours / name for name in ("torch_npu", "torchair", "acl", "npugraph_ex")]
    return [
        *(f"{folder}{os.sep}" for folder in libraries),
        sysconfig.get_paths()["stdlib"] + os.sep + "runpy",
    ]


def _meet(url: str, **_given: Any) -> Iterator[tuple[Any, int, int]]:
    """A rendezvous at which this rank is alone. The number of ranks is the program's or the environment's."""
    query = dict(parse_qsl(urlparse(url).query))
    found = []
    for name in ("rank", "world_size"):
        text = query.get(name, os.environ.get(name.upper()))
        if text is None:
            raise ValueError(
                f"Error initializing torch.distributed: environment variable {name.upper()} expected, but not set"
            )
        found.append(int(text))
    yield _C.hccl.LoneStore(), found[0], found[1]
    raise RuntimeError("a rank without peers meets once")


def _lone_gloo() -> type:
    real = distributed_c10d.ProcessGroupGloo

    class ProcessGroupGloo(_C.hccl.LoneBackend):  # type: ignore[name-defined, misc]
        """gloo's place in a group for CPU tensors: all ranks are taken to hold what this one holds."""

        _Options = real._Options
        create_device = staticmethod(real.create_device)
        create_default_device = staticmethod(real.create_default_device)

        def __init__(self, store: Any, rank: int, size: int, *_options: Any, **_named: Any) -> None:
            del store
            super().__init__(rank, size)
            self.options = real._Options()

    return ProcessGroupGloo
