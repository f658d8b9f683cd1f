"""Which device storages are parameters, gradients, optimizer states, and which a backward pass reads.

The memory timeline sorts allocations with it. PyTorch's event tree knows the storages of operators' inputs, and, with
Python tracing, those of modules and optimizers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch._C._profiler import RecordScope, _EventType

Row = list[Any]


class Follower:
    """Rows about tensors; a storage is told once a category."""

    def __init__(self) -> None:
        self._told: set[tuple[str, int]] = set()

    def rows(self, result: Any) -> dict[str, list[Row]]:
        tensors: list[Row] = []
        uses: list[Row] = []
        for event, backward in _events(result.experimental_event_tree(), False):
            if event.tag == _EventType.TorchOp:
                for address in _addresses(event.extra_fields.inputs):
                    uses.append([address, event.start_time_ns, backward])
                if event.name == "torch::autograd::AccumulateGrad":
                    for address in _addresses(event.extra_fields.inputs):
                        self._tell(tensors, "GRADIENT", address, event.start_time_ns)
            elif event.tag == _EventType.PyCall:
                self._call(tensors, event)
        return {"tensor": tensors, "use": uses}

    def _call(self, tensors: list[Row], event: Any) -> None:
        fields, when = event.extra_fields, event.start_time_ns
        if fields.module is not None:
            for _, parameter, gradient in fields.module.parameters:
                self._pair(tensors, parameter, gradient, when)
        if fields.optimizer is not None:
            for parameter, gradient, states in fields.optimizer.parameters:
                self._pair(tensors, parameter, gradient, when)
                for _, state in states:
                    self._tensor(tensors, "OPTIMIZER_STATE", state, when)

    def _pair(self, tensors: list[Row], parameter: Any, gradient: Any, when: int) -> None:
        self._tensor(tensors, "PARAMETER", parameter, when)
        self._tensor(tensors, "GRADIENT", gradient, when)

    def _tensor(self, tensors: list[Row], category: str, tensor: Any, when: int) -> None:
        if tensor is not None and tensor.storage_data_ptr:
            self._tell(tensors, category, tensor.storage_data_ptr, when)

    def _tell(self, tensors: list[Row], category: str, address: int, when: int) -> None:
        if category == "GRADIENT":  # gradients come and go, so that addresses change hands
            tensors.append([category, address, when])
        elif (category, address) not in self._told:
            self._told.add((category, address))
            tensors.append([category, address, when])


def _events(events: list[Any], backward: bool) -> Iterator[tuple[Any, bool]]:
    stack = [(event, backward) for event in reversed(events)]
    while stack:
        event, inside = stack.pop()
        if (
            event.tag == _EventType.TorchOp
            and event.extra_fields.scope == RecordScope.BACKWARD_FUNCTION
        ):
            inside = True
        yield event, inside
        stack.extend((child, inside) for child in reversed(event.children))


def _addresses(inputs: list[Any]) -> Iterator[int]:
    for value in inputs:
        for tensor in value if isinstance(value, list) else [value]:
            address = getattr(tensor, "storage_data_ptr", None)
            if address:
                yield address
