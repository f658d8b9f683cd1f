"""NpuDropPath: stochastic depth, with random numbers made beside the model."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from torch_npu._errors import ErrCode, ops_error
from torch_npu.contrib._names import torch_npu

__all__ = ["NpuDropPath"]


class _DropPathTask:
    """The random tensors that paths of one shape ask for in a step."""

    def __init__(self, x: torch.Tensor) -> None:
        self.shape = (x.shape[0],) + (1,) * (x.ndim - 1)
        self.device, self.dtype = x.device, x.dtype
        self.request_count = 0
        self.rand_queue: list[torch.Tensor] = []

    def fill(self) -> None:
        for _ in range(self.request_count - len(self.rand_queue)):
            self.rand_queue.append(torch.rand(self.shape, dtype=self.dtype, device=self.device))


class NpuDropPath(nn.Module):
    """Drops whole samples of a residual path in training, and scales the others by 1 / (1 - p).

    The random numbers of a step are made when the model given to `enable_droppath_ensemble` begins it. A path
    whose numbers are not there yet (the first step, or a model that was not enabled) passes its input on.

    Args:
        drop_prob: p, the probability that a sample is dropped.
    """

    task_dict: dict[tuple[Any, ...], _DropPathTask] = {}
    droppath_stream: Any = None

    def __init__(self, drop_prob: float | None = None) -> None:
        super().__init__()
        self.drop_prob = drop_prob
        self.keep_prob = 1 - (drop_prob or 0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.drop_prob or not self.training:
            return x
        if not isinstance(x, torch.Tensor):
            raise RuntimeError(
                f"NpuDropPath: expected a tensor, got {type(x).__name__}" + ops_error(ErrCode.TYPE)
            )
        key = (x.shape, x.device, x.dtype, x.ndim)
        task = NpuDropPath.task_dict.setdefault(key, _DropPathTask(x))
        if not task.rand_queue:
            task.request_count += 1
            return x
        keep = (task.rand_queue.pop(0) + self.keep_prob).floor_()
        return x.div(self.keep_prob) * keep

    @classmethod
    def enable_droppath_ensemble(cls, model: nn.Module) -> None:
        """Makes the random numbers of all paths, on a stream of their own, before each forward of the model."""
        if cls.droppath_stream is None:
            cls.droppath_stream = torch_npu.npu.Stream()

        def make(module: nn.Module, inputs: Any) -> None:
            stream = torch_npu.npu.current_stream()
            cls.droppath_stream.wait_stream(stream)  # what it recycles is free by then
            with torch_npu.npu.stream(cls.droppath_stream), torch.no_grad():
                for task in cls.task_dict.values():
                    task.fill()
            stream.wait_stream(cls.droppath_stream)

        model.register_forward_pre_hook(make)
