"""Batch norms that count their batches in int32, which the card adds faster."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

__all__: list[str] = []


class _NormBase(nn.modules.batchnorm._NormBase):
    """`num_batches_tracked` is an int32; everything else is PyTorch's."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *rest: Any,
        **options: Any,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, *rest, **options)
        if track_running_stats:
            self.num_batches_tracked = torch.tensor(0, dtype=torch.int32)


class _BatchNorm(_NormBase, nn.modules.batchnorm._BatchNorm):
    """The common base; subclasses check the input's dimensions."""


class FastBatchNorm1d(_NormBase, nn.BatchNorm1d):
    """`torch.nn.BatchNorm1d` with an int32 count."""


class FastBatchNorm2d(_NormBase, nn.BatchNorm2d):
    """`torch.nn.BatchNorm2d` with an int32 count."""


class FastBatchNorm3d(_NormBase, nn.BatchNorm3d):
    """`torch.nn.BatchNorm3d` with an int32 count."""


class FastSyncBatchNorm(_NormBase, nn.SyncBatchNorm):
    """`torch.nn.SyncBatchNorm` with an int32 count."""
