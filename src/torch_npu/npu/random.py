"""Random numbers: one generator a device, whose state is (seed, offset)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from softnpu import _C
from torch_npu.npu._device import _lazy_call, current_device, memory_index

__all__ = [
    "get_rng_state",
    "get_rng_state_all",
    "set_rng_state",
    "set_rng_state_all",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "initial_seed",
]


def default_generators() -> tuple[torch.Generator, ...]:
    """The generator of each device."""
    return tuple(_C.default_generator(i) for i in range(_C.device_count()))


def _generator(device: Any) -> torch.Generator:
    return _C.default_generator(memory_index(device))


def get_rng_state(device: Any = "npu") -> torch.Tensor:
    """The state of a device's generator, a byte tensor."""
    return _generator(device).get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all devices' generators."""
    return [get_rng_state(i) for i in range(_C.device_count())]


def set_rng_state(new_state: torch.Tensor, device: Any = "npu") -> None:
    """Puts a device's generator into a state that `get_rng_state` returned."""
    if not isinstance(new_state, torch.Tensor) or new_state.dtype != torch.uint8:
        kind = new_state.dtype if isinstance(new_state, torch.Tensor) else type(new_state).__name__
        raise TypeError(f"new_state must be a ByteTensor, but received {kind}")
    if new_state.layout != torch.strided:
        raise TypeError(f"new_state must be a ByteTensor, but received one of {new_state.layout}")
    _generator(device).set_state(new_state.cpu())


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Puts all devices' generators into states that `get_rng_state_all` returned."""
    if not isinstance(new_states, Iterable):
        raise TypeError(
            "set_rng_state_all: argument 'new_states' must be a list of ByteTensors, but received "
            f"{type(new_states).__name__}"
        )
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def _number(call: str, seed: Any) -> int:
    try:
        return int(seed)
    except (TypeError, ValueError, OverflowError) as wrong:
        text = f"{call}: argument 'seed' must be an integer, but received {seed!r} ({wrong})"
        raise type(wrong)(text) from None


def manual_seed(seed: int) -> None:
    """Seeds the current device; does nothing where there is none."""
    seed = _number("manual_seed", seed)
    if _C.device_count():
        _C.default_generator(_C.current_device()).manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Seeds every device with the same number."""
    seed = _number("manual_seed_all", seed)
    for index in range(_C.device_count()):
        _C.default_generator(index).manual_seed(seed)


def seed() -> None:
    """Seeds the current device with a random number."""
    _C.default_generator(current_device()).seed()


def seed_all() -> None:
    """Seeds every device with the same random number."""
    first = _C.default_generator(0).seed()
    manual_seed_all(first)


def initial_seed() -> int:
    """The seed that the current device's generator started from."""
    return _C.default_generator(current_device()).initial_seed()


def _set_rng_state_offset(offset: int, device: Any = "npu") -> None:
    """Moves a device's generator to an offset (a multiple of 4) of its sequence."""
    _lazy_call(lambda: _generator(device).set_offset(offset))


def _get_rng_state_offset(device: Any = "npu") -> int:
    return _generator(device).get_offset()
