"""NpuCachedDropout: dropout whose masks are made in the step before."""

from __future__ import annotations

from typing import Any

import torch

from torch_npu._errors import ErrCode, ops_error
from torch_npu.contrib._names import torch_npu

__all__ = ["NpuCachedDropout", "NpuFairseqDropout"]


class _DropOutTask:
    """The masks that layers of one shape and probability ask for in a step."""

    def __init__(self, shape: Any, dtype: torch.dtype, device: Any, p: float) -> None:
        self.shape, self.dtype, self.device, self.p = shape, dtype, device, p
        self.request_count = 0
        self.mask_queue: list[torch.Tensor] = []

    def fill(self) -> None:
        for _ in range(self.request_count - len(self.mask_queue)):
            self.mask_queue.append(
                torch_npu.npu_dropout_gen_mask(
                    self.shape, p=self.p, dtype=self.dtype, device=self.device
                )
            )


def mask_request(x: Any) -> tuple[Any, torch.dtype, Any]:
    """(shape, dtype, device) of a tensor to drop from, or of a list that asks for a mask alone."""
    if isinstance(x, torch.Tensor):
        return x.shape, x.dtype, x.device
    if isinstance(x, list):
        shape, dtype, device = x
        return shape, dtype, device
    raise RuntimeError(
        f"dropout: expected a tensor or a list [shape, dtype, device], got {type(x).__name__}"
        + ops_error(ErrCode.TYPE)
    )


class NpuCachedDropout(torch.nn.Dropout):
    """Dropout that takes its mask from a store.

    The model given to `enable_dropout_ensemble` fills the store after each forward, as much as the layers asked
    for. A layer whose mask is not there yet (the first step) passes its input on.

    Args:
        p: the probability of a zero.
        module_name: the name of the layer, for the reader.
    """

    task_dict: dict[tuple[Any, ...], _DropOutTask] = {}
    dropout_stream: Any = None

    def __init__(self, p: float, module_name: str | None = None) -> None:
        super().__init__(p)
        self.module_name = module_name

    def forward(self, x: Any) -> Any:
        """Drops from a tensor; for a list [shape, dtype, device], returns the mask (None if there is none)."""
        shape, dtype, device = mask_request(x)
        same = x if isinstance(x, torch.Tensor) else None
        if self.p == 0:
            return same
        key = (tuple(shape), dtype, device, self.p)
        task = NpuCachedDropout.task_dict.setdefault(
            key, _DropOutTask(shape, dtype, device, self.p)
        )
        if not task.mask_queue:
            task.request_count += 1
            return same
        mask = task.mask_queue.pop(0)
        return mask if same is None else torch_npu.npu_dropout_do_mask(x, mask, self.p)[0]

    @classmethod
    def enable_dropout_ensemble(cls, model: torch.nn.Module) -> None:
        """Makes the masks of all layers after each forward of the model."""
        if cls.dropout_stream is None:
            cls.dropout_stream = torch_npu.npu.Stream()

        def wait(module: torch.nn.Module, inputs: Any) -> None:
            torch_npu.npu.current_stream().wait_stream(cls.dropout_stream)

        def fill(module: torch.nn.Module, inputs: Any, outputs: Any) -> None:
            for task in cls.task_dict.values():
                task.fill()

        model.register_forward_pre_hook(wait)
        model.register_forward_hook(fill)


NpuFairseqDropout = NpuCachedDropout
