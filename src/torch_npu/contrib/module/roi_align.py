"""ROIAlign: features of regions by bilinear sampling."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from torch_npu.contrib._checks import require
from torch_npu.contrib._names import torch_npu

__all__ = ["ROIAlign"]

_LEGACY, _ALIGNED = 0, 3


class ROIAlign(nn.Module):
    """`torch_npu.npu_roi_align` with fixed options, in float32.

    Args:
        output_size: height and width of the result.
        spatial_scale: pixels of the feature map for a pixel of the image.
        sampling_ratio: samples in each direction of a cell; 0 for as many as the cell has pixels.
        aligned: whether pixels are sampled at their centers; False is what older programs did.
    """

    def __init__(
        self,
        output_size: Sequence[int],
        spatial_scale: float,
        sampling_ratio: int,
        aligned: bool = True,
    ) -> None:
        super().__init__()
        self.output_size, self.spatial_scale = output_size, spatial_scale
        self.sampling_ratio, self.aligned = sampling_ratio, aligned

    def forward(self, input_tensor: torch.Tensor, rois: torch.Tensor) -> torch.Tensor:
        """Features of `rois` (image's number, x0, y0, x1, y1) in `input_tensor` (n, c, h, w)."""
        fits = rois.dim() == 2 and rois.size(1) == 5
        require(fits, "ROIAlign", "rois", "of shape (n, 5)", tuple(rois.shape))
        rows, columns = self.output_size
        return torch_npu.npu_roi_align(
            input_tensor.float(),
            rois,
            self.spatial_scale,
            rows,
            columns,
            self.sampling_ratio,
            _ALIGNED if self.aligned else _LEGACY,
        )

    def __repr__(self) -> str:
        return (
            f"ROIAlign(output_size={self.output_size}, spatial_scale={self.spatial_scale}, "
            f"sampling_ratio={self.sampling_ratio}, aligned={self.aligned})"
        )
