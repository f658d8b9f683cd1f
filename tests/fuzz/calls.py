"""One call of the fuzzer: a sample of an operator, what was changed in it, and under which modes it runs."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import re
import traceback
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch._subclasses import FakeTensor

import torch_npu  # noqa: F401
from softnpu import settings
from tests import ROOT
from tests.fuzz import mutations, targets
from tests.fuzz.kinds import plain, without_frames
from tests.fuzz.mutations import Mutation
from tests.fuzz.writes import changed_outside, device_types, flat, mapped, storages, tensors

#: fake tensors touch no memory, and a call with them takes twenty times as long
MODES = (("plain",) * 12 + ("inference", "autocast", "gradient") * 4) * 2 + ("fake",)
_INTERNAL = re.compile(
    r"INTERNAL ASSERT|please report a bug|bad_alloc|bad_function_call|vector::_M|map::at|basic_string::"
)
#: a fake tensor with compressed rows of a device outside of PyTorch's own tree cannot be detached: its constructor asserts
#: a list of devices that knows no fake one of ours
_NO_FAKE_ROWS = "DispatchKey::SparseCsrMeta"
#: errors of Python that tell a reader nothing about the argument that was wrong
_RAW = (
    TypeError, IndexError, KeyError, AttributeError, AssertionError, ZeroDivisionError, UnboundLocalError,
    RecursionError, SystemError, OverflowError, StopIteration, MemoryError,
)  # fmt: skip
#: PyTorch's own words for an argument of a constructor or a function: they name it
_NAMES_IT = re.compile(
    r"^TypeError: ((?!int|float|bool)\w+\(\):? (argument|invalid data type|missing \d+ required positional)"
    r"|Multiple dispatch failed for)"
)
_OURS = str(ROOT / "src")
_KEYS = (
    torch._C.DispatchKey.AutogradOther, torch._C.DispatchKey.ADInplaceOrView, torch._C.DispatchKey.Python,
)  # fmt: skip


@dataclasses.dataclass
class Outcome:
    """`kind`: ok, refused, no sample (nothing to judge), or a finding: internal, write, state, crash, hang, memory."""

    kind: str
    message: str = ""

    @property
    def found(self) -> bool:
        return self.kind not in ("ok", "refused", "no sample")


@dataclasses.dataclass
class Call:
    target: str
    sample: int = 0
    seed: int = 0
    mutations: tuple[Mutation, ...] = ()
    mode: str = "plain"
    strict: int = 1
    device: str = "npu"
    _made: Any = dataclasses.field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def begun(cls, seed: int, index: int, names: list[str]) -> tuple[Call, random.Random]:
        """The call before its mutations, and the dice for them."""
        chance = random.Random(f"{seed}/{index}")
        target = targets.named(chance.choice(names))
        if targets.heavy(target.name) and chance.random() < 0.8:
            target = targets.named(chance.choice(names))
        call = cls(
            target.name, chance.randrange(target.samples), chance.randrange(2**31),
            mode=chance.choice(MODES), strict=chance.randrange(2),
        )  # fmt: skip
        return call, chance

    @classmethod
    def drawn(cls, seed: int, index: int, names: list[str]) -> Call:
        """The call with this number of the run with this seed; the same in every process."""
        call, chance = cls.begun(seed, index, names)
        arguments = call._arguments()
        count = chance.choice((0, 1, 1, 1, 2, 2, 3, 4))
        return call._spoiled(arguments, (mutations.choose(chance, arguments) for _ in range(count)))

    def made(self) -> Call:
        """The call with those of its mutations that PyTorch itself does not refuse."""
        return dataclasses.replace(self)._spoiled(self._arguments(), self.mutations)

    def _spoiled(self, arguments: dict[str, Any], chosen: Iterable[Mutation | None]) -> Call:
        applied: list[Mutation] = []
        for mutation in chosen:
            # the last two: PyTorch's own for nested and fake tensors
            refusals = (RuntimeError, NotImplementedError, TypeError, IndexError, ValueError)
            refusals += (AttributeError, AssertionError)
            if mutation is not None:
                with contextlib.suppress(*refusals):
                    mutations.apply(arguments, mutation)
                    applied.append(mutation)
        self.mutations, self._made = tuple(applied), arguments
        return self

    def _arguments(self) -> dict[str, Any]:
        torch.default_generator.manual_seed(self.seed)  # torch.manual_seed asks every backend
        torch.npu.manual_seed(self.seed)
        return targets.named(self.target).build(self.sample)

    def arguments(self) -> dict[str, Any]:
        made, self._made = self._made, None  # of the draw
        if made is not None:
            return made
        made = self._arguments()
        if self.device == "cpu":  # spoiled there: a copy would have no bits of PyTorch's own
            made = mapped(made, _on_host)
        for mutation in self.mutations:
            mutations.apply(made, Mutation(*mutation), self.device)
        return made if self.device == "npu" else mapped(made, _on_host)

    def run(self) -> Any:
        """The call as a program makes it; its exceptions are the caller's."""
        made = self.arguments()
        return self._call(made["args"], made["kwargs"])

    def _call(self, args: list[Any], kwargs: dict[str, Any]) -> Any:
        function = targets.named(self.target).function
        with contextlib.ExitStack() as stack:
            stack.enter_context(settings.override(strict=bool(self.strict)))
            if self.mode == "inference":
                stack.enter_context(torch.inference_mode())
            elif self.mode == "autocast":
                stack.enter_context(torch.autocast("npu", dtype=torch.bfloat16))
            elif self.mode == "fake":
                fake = stack.enter_context(torch._subclasses.FakeTensorMode())
                args, kwargs = mapped((args, kwargs), fake.from_tensor)
            elif self.mode == "gradient":
                args, kwargs = mapped((args, kwargs), _leaf)
            result = without_frames(function, *args, **kwargs)
            if self.mode == "gradient":
                outputs = [t for t in tensors(result) if t.requires_grad]
                if outputs:
                    sum(
                        t.float().sum() if not t.is_complex() else t.abs().sum() for t in outputs
                    ).backward()
        return result

    def judged(self, guard: Any = None) -> Outcome:
        """Runs the call and says what is to be thought of it."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = self.arguments()
            if self._leaves_the_device(made):
                return Outcome("no sample", "nothing is on the device")
            modes = _modes()
            before = (
                storages(made) if self.target.startswith("npu.") and self.mode != "fake" else {}
            )
            try:
                with _kept_keys() if self._fakes(made) else contextlib.nullcontext():
                    result = self._call(made["args"], made["kwargs"])
                outcome = Outcome("ok")
                del result
            except (Exception, KeyboardInterrupt) as wrong:  # every error is judged
                outcome = _judge_error(wrong, self.strict)
                wrong.__traceback__ = None
        if outcome.kind == "ok":
            changed = changed_outside(before, made, targets.named(self.target).schema)
            if changed:
                outcome = Outcome("write", changed)
        del before, made
        damaged = guard.damaged() if guard is not None else 0
        if damaged:
            return Outcome("write", f"bytes beside {damaged} allocations were changed")
        if not outcome.found and _modes() != modes:
            return Outcome("state", f"{modes} before the call, {_modes()} after it")
        return outcome

    def _leaves_the_device(self, made: dict[str, Any]) -> bool:
        """Whether the mutations have made it a call of PyTorch's CPU device alone."""
        if not targets.on_cpu_too(self.target) or self.device == "cpu":
            return False
        return "npu" not in device_types((made["args"], made["kwargs"]))

    def _fakes(self, made: dict[str, Any]) -> bool:
        return self.mode == "fake" or any(isinstance(t, FakeTensor) for t in tensors(made))

    def on_cpu(self) -> Call:
        return dataclasses.replace(self, device="cpu")

    def plain(self) -> dict[str, Any]:
        """The fields, for the constructor in another process."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.init}

    def program(self) -> str:
        """The call as a small program, with its arguments as comments."""
        lines = [
            "from tests.fuzz.calls import Call",
            "from tests.fuzz.mutations import Mutation",
            "",
        ]
        try:
            made = self.arguments()
            lines += [f"# {path} = {_shown(value)}" for path, value in flat(made)]
        except Exception as wrong:  # the comment is a help, no more
            lines.append(f"# arguments: {wrong}")
        shown = "".join(f"\n    {mutation!r}," for mutation in self.mutations)
        lines += [
            f"Call({self.target!r}, sample={self.sample}, seed={self.seed}, mutations=({shown}\n), "
            f"mode={self.mode!r}, strict={self.strict}).run()"
        ]
        return "\n".join(lines)


def _modes() -> tuple[Any, ...]:
    """What a call must leave as it was, of this thread."""
    excluded = torch._C._dispatch_tls_local_exclude_set()
    return (
        torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("npu"),
        torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack(),
        [key for key in _KEYS if excluded.has(key)],
    )  # fmt: skip


def _kept_keys() -> Any:
    """PyTorch's conversion of a released tensor to a fake one fails with guards in the frames of its error, which end in
    another order than they began: keys of its stay excluded, on any device."""
    excluded = torch._C._dispatch_tls_local_exclude_set()
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded)


def _on_host(x: torch.Tensor) -> torch.Tensor:
    """With its strides, also where elements lie on the same bytes, and with as many bytes."""
    if x.device.type != "npu":
        return x
    if not plain(x):
        return x.cpu()
    copy = torch.empty(0, dtype=x.dtype)
    size = x.untyped_storage().nbytes()
    copy.set_(x.untyped_storage().cpu(), x.storage_offset(), x.size(), x.stride())
    copy.untyped_storage().resize_(size)  # set_ makes it large enough
    return copy


def _leaf(x: torch.Tensor) -> torch.Tensor:
    return x.detach().requires_grad_() if x.is_floating_point() or x.is_complex() else x


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        layout = "" if value.is_contiguous() else f", strides {tuple(value.stride())}"
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)} on {value.device}{layout}"
    if isinstance(value, list):
        return f"[{', '.join(_shown(one) for one in value)}]"
    return repr(value)


def _judge_error(wrong: BaseException, strict: int) -> Outcome:
    text = f"{type(wrong).__name__}: {str(wrong).strip()}"
    if _INTERNAL.search(text) and _NO_FAKE_ROWS not in text:
        return Outcome("internal", text[:600])
    if strict and isinstance(wrong, _RAW):
        last = traceback.extract_tb(wrong.__traceback__)[-1]
        meant = (last.line or "").startswith("raise ") and "__init__()" not in text
        meant = meant or _NAMES_IT.match(text) is not None
        if last.filename.startswith(_OURS) and not meant:
            where = f"{last.filename.removeprefix(_OURS)}:{last.lineno}"
            return Outcome("internal", f"{where}: {text[:400]}")
    return Outcome("refused", text[:200])
