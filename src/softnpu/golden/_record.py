"""`record`: writes inputs, attributes and outputs of the chosen operators while a block runs.

It listens through TorchDispatchMode, below autograd, and so hears the operators of any device: softnpu's, a real card's,
the CPU's.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import threading
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from softnpu.golden import _store, _values
from softnpu.golden._program import made_by
from softnpu.golden._where import Where

#: results that nobody has computed
_UNINITIALIZED = ("empty", "new_empty", "_empty_")


@contextlib.contextmanager
def record(
    directory: str | os.PathLike[str],
    ops: str | Sequence[str] = "npu_*",
    *,
    modules: bool = False,
    limit: int | str = "4GiB",
    each: int | None = None,
    resume: bool = False,
) -> Iterator[Recorder]:
    """Records the operators that match `ops` into `directory` (of rank r of a job: into its `rank<r>`).

    `ops` are patterns of names, with or without namespace ("npu_*", "aten::mm", "*"), in a list or between commas.
    `modules` adds the calls of modules, which is what is left to see of a compiled program. `limit` bounds the bytes
    of tensors, `each` the calls of one operator. `resume` continues what an earlier run of the program has recorded;
    without it, a directory that holds a recording is an error.

    Views and uninitialized tensors are not recorded, nor what runs inside a compiled graph or a capture.
    """
    if each is not None and each < 1:
        raise ValueError(f"each must be at least 1, but is {each}")
    patterns = ops.split(",") if isinstance(ops, str) else list(ops)
    patterns = [pattern.strip() for pattern in patterns if pattern.strip()]
    if not patterns and not modules:
        raise ValueError("ops must name at least one pattern, such as npu_*")
    recorder = Recorder(
        _of_rank(Path(directory)), patterns, modules, _store.size(limit), each, resume
    )
    try:
        with recorder.where.registered(), recorder:
            yield recorder
        recorder.writer.index["complete"] = not recorder.full
    finally:
        recorder.close()


def _of_rank(directory: Path) -> Path:
    ranks = os.environ.get("WORLD_SIZE", "1")
    return directory / f"rank{os.environ.get('RANK', '0')}" if ranks not in ("", "1") else directory


class Recorder(TorchDispatchMode):
    def __init__(
        self, directory: Path, patterns: list[str], modules: bool, limit: int, each: int | None,
        resume: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.patterns, self.each = patterns, each
        self.lock = threading.RLock()
        self.where = Where()
        self.counts: Counter[str] = Counter()
        self.chosen: dict[str, bool] = {}
        self.unsupported: Counter[str] = Counter()
        self.full = False
        about = {"made_by": made_by(), "ops": patterns, "modules": modules, "limit": limit}
        if (directory / _store.INDEX).exists() and not resume:
            raise FileExistsError(
                f"{directory} holds a recording; resume=True (--resume) continues it, another directory begins anew"
            )
        self.writer = _store.Writer(directory, {**about, "each": each}, limit)
        self.before: dict[int, str] = {}
        if resume and (directory / _store.INDEX).exists():
            before = _store.read_index(directory)
            if before["ops"] != patterns or before["modules"] != modules or before["each"] != each:
                raise ValueError(
                    f"{directory} was recorded with ops={before['ops']}, modules={before['modules']}, "
                    f"each={before['each']}: it can only be continued with the same"
                )
            self.writer.resume(before)
            self.before = {call["seq"]: call["op"] for call in before["calls"]}
        self.skip = self.writer.index["seen"]
        self.seen = 0
        if modules:
            self.where.started, self.where.ended = self._module_starts, self._module_ends

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # a compiled program stays one while it is recorded

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:  # fmt: skip
        kwargs = kwargs or {}
        schema = getattr(func, "_schema", None)
        if schema is None or _untouchable(args, kwargs):
            return func(*args, **kwargs)
        place = self.where.now()
        if not self._wanted(schema, func):
            return func(*args, **kwargs)
        ticket = self._begin(schema.name, args, kwargs, place, schema.overload_name, _draws(func))
        result = func(*args, **kwargs)
        if ticket is not None:
            self._end(ticket, args, kwargs, result, _written(schema, args, kwargs))
        return result

    def _wanted(self, schema: Any, func: Any) -> bool:
        name = str(func)
        if name not in self.chosen:
            space, _, short = schema.name.partition("::")
            aliases = [r.alias_info for r in schema.returns]
            view = bool(aliases) and all(a is not None and not a.is_write for a in aliases)
            self.chosen[name] = (
                any(fnmatch.fnmatchcase(n, p) for p in self.patterns for n in (short, schema.name))
                and not view
                and not short.startswith(_UNINITIALIZED)
                and space not in ("prim", "profiler")
            )
        return self.chosen[name]

    # --- one call: what it reads before it runs, what it has made afterwards ---------------------------

    def _begin(
        self, name: str, args: Any, kwargs: Any, place: dict[str, Any], overload: str, random: bool
    ) -> dict[str, Any] | None:  # fmt: skip
        with self.lock:
            number = self.seen
            self.seen += 1
            self.counts[name] += 1
            if number < self.skip:
                if self.before.get(number, name) != name:
                    raise RuntimeError(
                        f"this is not the program that was recorded: call {number} is {name}, "
                        f"in the recording it is {self.before[number]}"
                    )
                return None
            if self.full:
                self.writer.index["left_out"] += 1
                return None
            self.writer.index["seen"] = self.seen
            if self.each is not None and self.counts[name] > self.each:
                self.writer.index["left_out"] += 1
                return None
            fresh: dict[str, Any] = {}
            try:
                with _plainly():
                    encoded = {
                        "args": [_values.encode(a, lambda t: self.writer.keep(t, fresh)) for a in args],
                        "kwargs": {
                            k: _values.encode(v, lambda t: self.writer.keep(t, fresh))
                            for k, v in kwargs.items()
                        },
                    }  # fmt: skip
            except _values.Unsupported as why:
                self._leave_out(name, why)
                return None
            call = {"seq": number, "op": name, "overload": overload, **encoded, **place}
            device = _device(args, kwargs)
            return {
                "call": call,
                "fresh": fresh,
                "device": device,
                "rng": _random_state(device) if random else None,
            }

    def _end(
        self, ticket: dict[str, Any], args: Any, kwargs: Any, result: Any, written: dict[str, Any]
    ) -> None:
        call, fresh = ticket["call"], ticket["fresh"]
        with self.lock, _plainly():

            def keep(tensor: torch.Tensor) -> str:
                return self.writer.keep(tensor, fresh)

            try:
                call["outputs"] = _values.encode(result, keep)
                call["written"] = {n: _values.encode(t, keep) for n, t in written.items()}
                if not written and not _values.tensors(call["outputs"]):
                    # A schema that declares nothing: what changed is what it wrote.
                    call["written"] = self._changed(call, args, kwargs, keep)
            except _values.Unsupported as why:
                self._leave_out(call["op"], why)
                return
            if ticket["rng"] is not None:
                now = _random_state(ticket["device"])
                if not torch.equal(now, ticket["rng"]):
                    call["rng"] = {"device": ticket["device"].type, "state": keep(ticket["rng"])}
            try:
                self.writer.add(call, fresh)
            except _store.Full:
                self.full = True
                # The next run, with a higher limit, takes up here.
                self.writer.index["seen"] = call["seq"]
                self.writer.index["left_out"] += 1
                warnings.warn(
                    f"the recording in {self.writer.directory} is full ({self.writer.limit} bytes): "
                    f"calls from number {call['seq']} ({call['op']}) on are left out",
                    stacklevel=2,
                )

    @staticmethod
    def _changed(call: dict[str, Any], args: Any, kwargs: Any, keep: Any) -> dict[str, Any]:
        before = dict(_values.tensors(call["args"]) + _values.tensors({"dict": call["kwargs"]}))
        after = _named(args, kwargs)
        found = {name: _values.encode(after[name], keep) for name in before}
        return {n: e for n, e in found.items() if e["tensor"] != before[n]["tensor"]}

    def _leave_out(self, name: str, why: object) -> None:
        self.writer.index["left_out"] += 1
        if not self.unsupported[name]:
            warnings.warn(f"calls of {name} with {why} are not recorded", stacklevel=3)
        self.unsupported[name] += 1

    def _module_starts(self, name: str, args: Any, kwargs: Any) -> Any:
        if _untouchable(args, kwargs) or not isinstance(args, tuple):
            return None
        place = {"module": name, "source": None, "phase": "forward"}
        ticket = self._begin(f"module::{name}", args, kwargs, place, "", False)
        return None if ticket is None else (ticket, args, kwargs)

    def _module_ends(self, ticket: Any, result: Any) -> None:
        begun, args, kwargs = ticket
        if not _untouchable((result,), {}):
            self._end(begun, args, kwargs, result, {})

    def close(self) -> None:
        with self.lock:
            self.writer.flush()


@contextlib.contextmanager
def _plainly() -> Iterator[None]:
    """Copies to the host are ours: no gradients, and nobody records them."""
    with torch.no_grad(), _disable_current_modes():
        yield


def _untouchable(args: Any, kwargs: Any) -> bool:
    """Tensors without values: of a trace, of a capture."""
    for value in tree_leaves((args, kwargs)):
        if isinstance(value, torch.Tensor):
            if isinstance(value, FakeTensor) or torch._is_functional_tensor(value):
                return True
            if value.device.type == "npu":
                return bool(torch.npu.is_current_stream_capturing())
    return False


def _draws(func: Any) -> bool:
    """Whether the operator may draw random numbers; a card's own operators carry no tag."""
    return torch.Tag.nondeterministic_seeded in func.tags or func.namespace == "npu"


def _device(args: Any, kwargs: Any) -> torch.device:
    for value in tree_leaves((args, kwargs)):
        if isinstance(value, torch.Tensor):
            return value.device
        if isinstance(value, torch.device):
            return value
    return torch.device("cpu")


def _random_state(device: torch.device) -> torch.Tensor:
    if device.type == "npu":
        index = torch.npu.current_device() if device.index is None else device.index
        return torch.npu.get_rng_state(index).cpu()
    return torch.get_rng_state()


def _written(schema: Any, args: Any, kwargs: Any) -> dict[str, torch.Tensor]:
    """The arguments that the schema says are written, by the names that `_values.tensors` gives them."""
    names = _named(args, kwargs)
    found: dict[str, torch.Tensor] = {}
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        at = argument.name if argument.name in kwargs else str(position)
        found.update({n: t for n, t in names.items() if n == at or n.startswith(f"{at}.")})
    return found


def _named(args: Any, kwargs: Any) -> dict[str, torch.Tensor]:
    return {**_values.named(list(args)), **_values.named(kwargs)}
