"""torchair.ops.record and wait: order between streams of one graph."""

from __future__ import annotations

import torch

from torchair._air import mark


def _record(*, device: torch.device | None = None) -> torch.Tensor:
    return torch.empty(0, device=device)


RECORD = mark("record(*, Device? device=None) -> Tensor", _record, _record)
WAIT = mark("wait(Tensor[] x) -> ()", lambda x: None, lambda x: None)


def record() -> torch.Tensor:
    """A task on the current stream that does nothing but be waited for: give the result to `wait`."""
    return torch.ops.air.record()


def wait(tensors: list[torch.Tensor]) -> None:
    """What follows on the current stream starts after the operators that compute these tensors."""
    if not isinstance(tensors, (list, tuple)) or len(tensors) == 0:
        raise ValueError("torchair.ops.wait: expected a list with at least one tensor")
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(
                f"torchair.ops.wait: expected tensors, received {type(tensor).__name__}"
            )
    torch.ops.air.wait(tensors)
