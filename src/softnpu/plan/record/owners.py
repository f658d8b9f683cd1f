"""Whose memory it is: parameters, gradients and optimizer state, told by modules and optimizers."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from softnpu.plan.record.log import Log
from softnpu.plan.recording import GRADIENTS, PARAMETERS, STATE, Mark


class Owners:
    """Marks storages; called when an optimizer steps, when a module is first called, and at the end."""

    def __init__(self, log: Log) -> None:
        self.marks: list[Mark] = []
        self._log = log
        self._modules: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()

    def mark(self, kind: str, tensors: Iterable[Any]) -> None:
        order = self._log.tick()
        for tensor in tensors:
            address = address_of(tensor)
            if address:
                self.marks.append(Mark(order, address, kind))

    def module(self, root: torch.nn.Module) -> None:
        """The parameters and buffers of an outermost module."""
        self._modules.add(root)
        self.mark(PARAMETERS, root.parameters())
        self.mark(PARAMETERS, root.buffers())
        self.mark(GRADIENTS, (p.grad for p in root.parameters() if p.grad is not None))

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """What an optimizer updates is a parameter, unless it has copies of its own: these are its state."""
        for root in list(self._modules):
            self.module(root)
        known = {address_of(p) for root in self._modules for p in root.parameters()}
        updated = [p for group in optimizer.param_groups for p in group["params"]]
        own = [p for p in updated if known and address_of(p) not in known]
        self.mark(STATE, own)
        self.mark(PARAMETERS, (p for p in updated if not known or address_of(p) in known))
        self.mark(GRADIENTS, (p.grad for p in updated if p.grad is not None))

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        self.mark(STATE, _tensors(list(optimizer.state.values())))


def address_of(tensor: Any) -> int:
    """The address of a tensor's device storage; 0 without one. Of a distributed tensor, this rank's part counts."""
    tensor = getattr(tensor, "_local_tensor", tensor)
    if not isinstance(tensor, torch.Tensor) or tensor.device.type != "npu":
        return 0
    if tensor.layout != torch.strided or type(tensor).__torch_dispatch__ not in _PLAIN:
        return 0
    return tensor.untyped_storage().data_ptr()


_PLAIN = (torch.Tensor.__torch_dispatch__, torch.nn.Parameter.__torch_dispatch__)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
