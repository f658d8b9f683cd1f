"""torch_npu.utils.FlopsCounter: floating point operations of matrix products, convolutions and attention.

Counting is exact arithmetic on the shapes of each call. Off, nothing is in the way of an operator.

Differs from upstream: the counter sees the thread that called `start` and the backward passes that thread starts.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode

from torch_npu.utils._flops_formulas import Formula, convolution, formulas

__all__: list[str] = []


class _Count(TorchDispatchMode):
    """Sees every operator of its thread while the counter is on."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        formula = formulas.get(func._schema.name)
        if formula is not None and _on_device(args):
            _state.add(_apply(formula, func, args, kwargs, out))
        return out


def _apply(
    formula: Formula, func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any
) -> int:
    """Options of our own operators reach the formula by name, however they were given."""
    if formula is convolution:
        kwargs = {**kwargs, "out": out}
    if func.namespace == "npu":
        names = [argument.name for argument in func._schema.arguments]
        count = formula.__code__.co_argcount
        kwargs = {**dict(zip(names[count:], args[count:], strict=False)), **kwargs}
        args = args[:count]
    return formula(*args, **kwargs)


def _on_device(args: Sequence[Any]) -> bool:
    for value in args:
        if isinstance(value, (list, tuple)) and value:
            value = value[0]
        if isinstance(value, torch.Tensor):
            return value.device.type == "npu" and not isinstance(value, FakeTensor)
    return False


class _State:
    """What all counters share."""

    def __init__(self) -> None:
        self.recorded = self.traversed = 0
        self.paused = False
        self.mode: _Count | None = None

    def add(self, flops: int) -> None:
        self.traversed += flops
        if not self.paused:
            self.recorded += flops

    def enable(self) -> None:
        if self.mode is None:
            self.mode = _Count()
            _push_mode(self.mode)

    def reset(self) -> None:
        self.recorded = self.traversed = 0
        self.paused = False
        if self.mode is not None:
            _remove(self.mode)
            self.mode = None


def _remove(mode: _Count) -> None:
    """Takes a mode off the stack, also from below modes that were entered after it."""
    above = []
    while (top := _pop_mode()) is not mode:
        above.append(top)
    for other in reversed(above):
        _push_mode(other)


_state = _State()


class _FlopsCounter:
    """Counts floating point operations. All counters are one: they share their state.

    `start` begins, `pause` stops counting recomputation's share (`get_flops()[0]`), `resume` goes on with it, and `stop`
    ends and sets everything to 0.
    """

    _instance: _FlopsCounter | None = None

    def __new__(cls) -> _FlopsCounter:
        if cls._instance is None or type(cls._instance) is not cls:
            cls._instance = super().__new__(cls)
        return cls._instance

    def __enter__(self) -> _FlopsCounter:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        _state.enable()

    def stop(self) -> None:
        _state.reset()

    def pause(self) -> None:
        _state.paused = True

    def resume(self) -> None:
        _state.paused = False

    def get_flops(self) -> list[int]:
        """Operations without those of recomputation (while paused), and all of them."""
        return [_state.recorded, _state.traversed]


class FlopsCounter(_FlopsCounter):
    """The old place of torch_npu.utils.FlopsCounter."""

    def __init__(self) -> None:
        warnings.warn(
            "torch_npu.utils.flops_count.FlopsCounter() will be deprecated: use torch_npu.utils.FlopsCounter().",
            FutureWarning,
            stacklevel=2,
        )
