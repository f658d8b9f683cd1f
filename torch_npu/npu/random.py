"""Random numbers: one generator a device, whose state is (seed, offset)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from softnpu import _C
from torch_npu.npu.device import checked_index, current_device


def default_generators() -> tuple[torch.Generator, ...]:
    return tuple(_C.default_generator(i) for i in range(_C.device_count()))


def get_rng_state(device: Any = "npu") -> torch.Tensor:
    """The state of a device's generator, a byte tensor."""
    return _C.default_generator(checked_index(device)).get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    return [get_rng_state(i) for i in range(_C.device_count())]


def set_rng_state(new_state: torch.Tensor, device: Any = "npu") -> None:
    _C.default_generator(checked_index(device)).set_state(new_state)


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def manual_seed(seed: int) -> None:
    """Seeds the current device; does nothing where there is none."""
    if _C.device_count():
        _C.default_generator(_C.current_device()).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    for index in range(_C.device_count()):
        _C.default_generator(index).manual_seed(int(seed))


def seed() -> None:
    """Seeds the current device with a random number."""
    _C.default_generator(current_device()).seed()


def seed_all() -> None:
    """Seeds every device with the same random number."""
    first = _C.default_generator(0).seed()
    manual_seed_all(first)


def initial_seed() -> int:
    return _C.default_generator(current_device()).initial_seed()
