"""NpuPreGenDropout: dropout whose masks are parts of one that is made for the whole step."""

from __future__ import annotations

import math
from typing import Any

import torch

from torch_npu._errors import ErrCode, ops_error
from torch_npu.contrib._names import torch_npu

__all__: list[str] = []

_MEBI = 1 << 20


class _PreGenDropoutTask:
    """One mask of `max_mb` times 2^20 elements, and how far it is used."""

    def __init__(self, device: str, p: float) -> None:
        self.device, self.p = device, p
        self.max_mb, self.idx = 16, 0
        self.renew()

    def renew(self) -> None:
        self.idx = 0
        self.mask = torch_npu.npu_dropout_gen_mask(
            [self.max_mb, 1024, 1024], p=self.p, dtype=torch.float32, device=self.device
        )

    def take(self, elements: int) -> torch.Tensor:
        """The next bits; from the beginning where they do not suffice, and more in the next step."""
        size = -(-elements // 128) * 16
        start, self.idx = self.idx, self.idx + size
        if self.idx > len(self.mask):
            self.max_mb = max(self.idx * 8 // _MEBI + 1, self.max_mb)
            start = 0
        return self.mask[start : start + size]


class NpuPreGenDropout(torch.nn.Dropout):
    """Dropout that takes bits of a large mask, which `enable_dropout_ensemble` makes before each step.

    Args:
        p: the probability of a zero.
        module_name: the name of the layer, for the reader.
    """

    task_dict: dict[float, _PreGenDropoutTask] = {}
    prob: set[float] = set()
    dropout_stream: Any = None

    def __init__(self, p: float, module_name: str | None = None) -> None:
        super().__init__(p)
        self.module_name = module_name
        NpuPreGenDropout.prob.add(p)

    def forward(self, x: Any) -> Any:
        """Drops from a tensor; for a list [shape, dtype, device], returns the mask."""
        from torch_npu.contrib.module.ensemble_dropout import mask_request

        shape, _, _ = mask_request(x)
        whole = isinstance(x, torch.Tensor)
        if self.p == 0:
            return x if whole else None
        task = NpuPreGenDropout.task_dict.get(self.p)
        if task is None:
            raise RuntimeError(
                f"NpuPreGenDropout: there is no mask for p={self.p}; enable_dropout_ensemble(model) makes one for "
                "each layer that exists" + ops_error(ErrCode.VALUE)
            )
        mask = task.take(math.prod(shape))
        return torch_npu.npu_dropout_do_mask(x, mask, self.p)[0] if whole else mask

    @classmethod
    def enable_dropout_ensemble(cls, model: torch.nn.Module) -> None:
        """Makes a mask for each probability now, and new ones after each forward of the model."""
        if cls.dropout_stream is None:
            cls.dropout_stream = torch_npu.npu.Stream()
        device = f"npu:{torch_npu.npu.current_device()}"
        for p in cls.prob:
            cls.task_dict[p] = _PreGenDropoutTask(device, p)

        def wait(module: torch.nn.Module, inputs: Any) -> None:
            torch_npu.npu.current_stream().wait_stream(cls.dropout_stream)

        def renew(module: torch.nn.Module, inputs: Any, outputs: Any) -> None:
            for task in cls.task_dict.values():
                task.renew()

        model.register_forward_pre_hook(wait)
        model.register_forward_hook(renew)
