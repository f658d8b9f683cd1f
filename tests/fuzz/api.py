"""What is no operator: functions and classes of torch.npu and acl with odd arguments, and misuse in several steps.

A sample is drawn from its number, so that a call is repeated by its number alone. A step of a sequence that is refused does
not end the sequence: what follows meets the state that the refusal left.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch

import torch_npu

SAMPLES = 1_000_000
#: they write files, wait for minutes, or change how the whole process runs
_LEFT = {
    "init_dump", "set_dump", "finalize_dump", "set_aoe", "stress_detect", "change_current_allocator",
    "NPUPluggableAllocator", "restart_device", "stop_device", "make_graphed_callables", "set_option", "npurt",
    "set_compile_mode", "save_npugraph_tensor", "ptr_to_bytes", "ptr_to_numpy", "init", "finalize",
}  # fmt: skip


def _odd(chance: random.Random) -> Any:
    """Anything that a program may hand over by mistake. Plain values, made when asked for."""
    made: list[Callable[[], Any]] = [
        *(functools.partial(int, n) for n in (0, 1, -1, 7, 2**31, 2**62, -(2**63), 2**64, -(2**70))),
        *(functools.partial(float, n) for n in (0.5, -1.0, "nan", "inf")),
        *(functools.partial(str, n) for n in ("", "npu", "npu:0", "npu:99", "cpu", "unknown", "\0", "x" * 300)),
        *(lambda: None, lambda: True, lambda: False, lambda: b"x", list, dict, object, lambda: [0], lambda: (1, 2)),
        *(lambda: torch.float16, lambda: torch.device("npu:0"), lambda: torch.device("npu:7"), lambda: len),
        *(_tensor, lambda: torch.ones(3), torch.npu.Stream, torch.npu.current_stream, torch.npu.Event),
        *(lambda: torch.empty(0, dtype=torch.uint8), lambda: torch.zeros(16, dtype=torch.uint8)),
        *(torch.npu.NPUGraph, torch.npu.ExternalEvent, torch.npu.MemPool, torch.npu.graph_pool_handle),
    ]  # fmt: skip
    return chance.choice(made)()


def _tensor() -> torch.Tensor:
    return torch.ones(2, 3, device="npu")


def functions() -> dict[str, tuple[Callable[..., Any], Callable[[int], dict[str, Any]]]]:
    """By name: the function, and its arguments by the number of the sample."""
    found = {}
    for name, function in _public():
        drawn = functools.partial(_drawn, name, _parameters(function))
        found[f"api.{name}"] = (_restored(function), drawn)
    for name, steps in SEQUENCES.items():
        found[f"api.{name}"] = (
            _restored(functools.partial(_sequence, steps)),
            functools.partial(_drawn_steps, name, sorted(steps)),
        )
    return found


def _public() -> Iterator[tuple[str, Callable[..., Any]]]:
    import acl
    import acl.rt
    import acl.util

    npu = torch_npu.npu
    places = {"torch.npu": npu, "torch.npu.memory": npu.memory, "torch.npu.random": npu.random}
    places |= {"torch.npu.graphs": npu.graphs, "torch.npu.mstx": npu.mstx, "torch.npu.amp": npu.amp}
    places |= {"acl": acl, "acl.rt": acl.rt, "acl.util": acl.util}
    seen = set()
    for place, module in places.items():
        for name in sorted(vars(module)):
            value = getattr(module, name)
            home = str(getattr(value, "__module__", ""))
            own = home.split(".")[0] in ("torch_npu", "acl") and home != "torch_npu._errors"
            if name.startswith("_") or name in _LEFT or not own or not callable(value):
                continue
            if id(value) not in seen:
                seen.add(id(value))
                yield f"{place}.{name}", value
    for owner in (npu.Stream, npu.Event, npu.ExternalEvent, npu.NPUGraph, npu.MemPool):
        for name in sorted(dir(owner)):
            method = inspect.getattr_static(owner, name)
            public = not name.startswith("_") and callable(getattr(owner, name))
            if public and not isinstance(method, (staticmethod, classmethod)):
                yield f"torch.npu.{owner.__name__}.{name}", functools.partial(_method, owner, name)


def _method(owner: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    return getattr(owner(), name)(*args, **kwargs)


def _parameters(function: Callable[..., Any]) -> list[tuple[str, bool]]:
    """The parameters and whether each must be given; three unknown ones where no signature is known."""
    with contextlib.suppress(ValueError, TypeError):
        known = inspect.signature(function).parameters.values()
        plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return [(p.name, p.default is p.empty) for p in known if p.kind in plain] or [("x", False)]
    return [("x", False), ("y", False), ("z", False)]


def _drawn(name: str, parameters: list[tuple[str, bool]], index: int) -> dict[str, Any]:
    chance = random.Random(f"{name}/{index}")
    wanted = sum(needed for _, needed in parameters)
    count = chance.randint(wanted, len(parameters))
    return {"args": [_odd(chance) for _ in range(count)], "kwargs": {}}


def _drawn_steps(name: str, steps: list[str], index: int) -> dict[str, Any]:
    chance = random.Random(f"{name}/{index}")
    return {"args": [[chance.choice(steps) for _ in range(chance.randint(2, 9))]], "kwargs": {}}


def _restored(function: Callable[..., Any]) -> Callable[..., Any]:
    """Puts back what a call may leave changed for the next one."""

    def called(*args: Any, **kwargs: Any) -> None:
        try:
            made = function(*args, **kwargs)
            _free(function, made)
            if isinstance(made, contextlib.AbstractContextManager):
                with made:
                    _tensor().add_(1)
        finally:
            _restore()

    return called


def _free(function: Callable[..., Any], made: Any) -> None:
    """What acl.rt.malloc and its kind returned: an address and a code."""
    import acl.rt

    name = getattr(function, "__name__", "")
    if getattr(acl.rt, name, None) is function and name.startswith("malloc") and made[1] == 0:
        (acl.rt.free_host if name == "malloc_host" else acl.rt.free)(made[0])


def _restore() -> None:
    torch.npu.set_autocast_enabled(False)
    torch.npu.set_device(0)
    if torch.npu.is_current_stream_capturing():
        for graph in [o for o in gc.get_objects() if type(o) is torch.npu.NPUGraph]:
            with contextlib.suppress(RuntimeError):
                graph.capture_end()
    torch.npu.set_stream(torch.npu.default_stream())
    torch.npu.set_per_process_memory_fraction(1.0)
    torch.npu.set_sync_debug_mode(0)


class State:
    """What the steps of a sequence share."""

    def __init__(self) -> None:
        self.x = torch.ones(4, 6, device="npu")
        self.graphs = [torch.npu.NPUGraph(), torch.npu.NPUGraph()]
        self.streams = [torch.npu.Stream(), torch.npu.Stream()]
        self.events = [torch.npu.Event(), torch.npu.Event(enable_timing=True)]
        self.external = torch.npu.ExternalEvent()
        self.pool: Any = None
        self.handle: Any = None
        self.kept: list[Any] = []


def _sequence(steps: dict[str, Callable[[State], Any]], chosen: list[str]) -> None:
    state = State()
    wrong: Exception | None = None
    for step in chosen if isinstance(chosen, list) else []:
        if step not in steps:
            continue
        try:
            steps[step](state)
        except Exception as error:  # the first one is judged; the steps go on
            wrong = wrong or error
    state.external.record()  # nobody else will
    if wrong is not None:
        raise wrong


def _weakly(state: State, which: int) -> None:
    state.graphs[which] = torch.npu.NPUGraph()


def _begin_group(state: State) -> None:
    torch.npu.graph_task_group_begin(torch.npu.current_stream())


def _end_group(state: State) -> None:
    state.handle = torch.npu.graph_task_group_end(torch.npu.current_stream())


def _update(state: State) -> None:
    torch.npu.graph_task_update_begin(torch.npu.current_stream(), state.handle)


def _updated(state: State) -> None:
    torch.npu.graph_task_update_end(torch.npu.current_stream())


def _fork(state: State) -> None:
    state.streams[0].wait_stream(torch.npu.current_stream())
    with torch.npu.stream(state.streams[0]):
        state.kept.append(state.x * 2)


def _use_pool(state: State) -> None:
    with torch.npu.use_mem_pool(torch.npu.MemPool()):
        state.kept.append(torch.ones(1000, device="npu"))


def _nested(state: State) -> None:
    with torch.npu.graph(state.graphs[1]):
        state.x.mul_(2)


_WORK: dict[str, Callable[[State], Any]] = {
    "add": lambda s: s.x.add_(1),
    "keep": lambda s: s.kept.append(s.x @ s.x.t()),
    "drop": lambda s: s.kept.clear(),
    "item": lambda s: s.x.sum().item(),
    "to host": lambda s: s.x.cpu(),
    "random": lambda s: s.kept.append(torch.rand(7, device="npu")),
    "npu_swiglu": lambda s: s.kept.append(torch_npu.npu_swiglu(s.x)),
    "resize": lambda s: s.x.resize_(3, 5),
    "replace": lambda s: setattr(s, "x", torch.ones(4, 6, device="npu")),
    "synchronize": lambda s: torch.npu.synchronize(),
    "empty_cache": lambda s: torch.npu.empty_cache(),
    "snapshot": lambda s: torch.npu.memory_snapshot(),
    "collect": lambda s: gc.collect(0),
    "stream 1": lambda s: torch.npu.set_stream(s.streams[1]),
    "default": lambda s: torch.npu.set_stream(torch.npu.default_stream()),
    "device 1": lambda s: torch.npu.set_device(1),
    "device 0": lambda s: torch.npu.set_device(0),
    "pool": _use_pool,
}
#: by target: steps by name
SEQUENCES: dict[str, dict[str, Callable[[State], Any]]] = {
    "graph_steps": _WORK
    | {
        "begin": lambda s: s.graphs[0].capture_begin(),
        "begin pool": lambda s: s.graphs[0].capture_begin(pool=torch.npu.graph_pool_handle()),
        "begin shared": lambda s: s.graphs[1].capture_begin(pool=s.graphs[0].pool()),
        "end": lambda s: s.graphs[0].capture_end(),
        "end 1": lambda s: s.graphs[1].capture_end(),
        "replay": lambda s: s.graphs[0].replay(),
        "replay 1": lambda s: s.graphs[1].replay(),
        "reset": lambda s: s.graphs[0].reset(),
        "forget": lambda s: _weakly(s, 0),
        "nested": _nested,
        "fork": _fork,
        "join": lambda s: torch.npu.current_stream().wait_stream(s.streams[0]),
        "group": _begin_group,
        "group end": _end_group,
        "update": _update,
        "update end": _updated,
        "update graph": lambda s: s.graphs[0].update([{"x": 1}]),
        "external": lambda s: s.external.wait(torch.npu.current_stream()),
        "external reset": lambda s: s.external.reset(torch.npu.current_stream()),
        "external record": lambda s: s.external.record(torch.npu.current_stream()),
    },
    "stream_steps": _WORK
    | {
        "record": lambda s: s.events[0].record(),
        "record 1": lambda s: s.events[1].record(s.streams[0]),
        "wait": lambda s: s.events[0].wait(s.streams[1]),
        "wait 1": lambda s: s.events[1].wait(),
        "query": lambda s: s.events[0].query(),
        "elapsed": lambda s: s.events[0].elapsed_time(s.events[1]),
        "event synchronize": lambda s: s.events[1].synchronize(),
        "stream synchronize": lambda s: s.streams[1].synchronize(),
        "stream query": lambda s: s.streams[1].query(),
        "wait stream": lambda s: s.streams[1].wait_stream(s.streams[0]),
        "record stream": lambda s: s.x.record_stream(s.streams[0]),
        "blocked": lambda s: s.external.wait(s.streams[1]),
        "release": lambda s: s.external.record(s.streams[0]),
        "reset": lambda s: s.external.reset(s.streams[1]),
        "on 0": lambda s: torch.npu.set_stream(s.streams[0]),
        "lose": lambda s: s.streams.__setitem__(0, torch.npu.Stream()),
        "lose event": lambda s: s.events.__setitem__(0, torch.npu.Event()),
        "fork": _fork,
    },
}
