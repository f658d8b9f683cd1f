"""PSROIPool: pooling of regions from position-sensitive score maps."""

from __future__ import annotations

import torch
from torch import nn

from torch_npu.contrib._checks import require
from torch_npu.contrib._names import torch_npu

__all__ = ["PSROIPool"]


class PSROIPool(nn.Module):
    """`torch_npu.npu_ps_roi_pooling` with fixed options.

    Args:
        pooled_height: rows of the result; like `pooled_width` it must be `group_size`.
        pooled_width: columns of the result.
        spatial_scale: pixels of the feature map for a pixel of the image.
        group_size: groups of score maps, in each direction.
        output_dim: channels of the result.
    """

    def __init__(
        self,
        pooled_height=7,
        pooled_width=7,
        spatial_scale=1 / 16.0,
        group_size=7,
        output_dim=22,
    ):
        super().__init__()
        require(
            pooled_height == pooled_width == group_size,
            "PSROIPool",
            "group_size",
            "the pooled height and width",
            (pooled_height, pooled_width, group_size),
        )
        self.group_size, self.spatial_scale, self.output_dim = group_size, spatial_scale, output_dim

    def forward(self, features: torch.Tensor, rois: torch.Tensor) -> torch.Tensor:
        return torch_npu.npu_ps_roi_pooling(
            features, rois, self.spatial_scale, self.group_size, self.output_dim
        )

    def __repr__(self) -> str:
        size = self.group_size
        return (
            f"PSROIPool(pooled_width={size}, pooled_height={size}, spatial_scale={self.spatial_scale}, "
            f"group_size={size}, output_dim={self.output_dim})"
        )
