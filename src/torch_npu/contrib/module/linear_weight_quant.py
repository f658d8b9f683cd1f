"""LinearWeightQuant: a linear layer of floating inputs and quantized weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parameter import Parameter

from torch_npu.contrib._names import torch_npu

__all__ = ["LinearWeightQuant"]


class LinearWeightQuant(nn.Module):
    """Inputs times weights that are scaled back on the way; see `torch_npu.npu_weight_quant_batchmatmul`.

    Args:
        in_features: size of an input.
        out_features: size of an output.
        bias: whether there is a `bias`.
        device: where the parameters are made.
        dtype: of the parameters when they are made.
        antiquant_offset: whether there is an `antiquant_offset`.
        quant_scale: whether there is a `quant_scale`, for a quantized result.
        quant_offset: whether there is a `quant_offset`.
        antiquant_group_size: rows of the weight that share a scale; 0 for all.
        inner_precise: 0 for high precision, 1 for speed.
        weight_dtype: the type that the weight carries, where it is not the tensor's own.
    """

    def __init__(
        self,
        in_features,
        out_features,
        bias: bool = True,
        device=None,
        dtype=None,
        antiquant_offset: bool = False,
        quant_scale: bool = False,
        quant_offset: bool = False,
        antiquant_group_size: int = 0,
        inner_precise: int = 0,
        weight_dtype=None,
    ) -> None:
        super().__init__()

        def parameter(*shape: int) -> Parameter:
            return Parameter(torch.empty(shape, device=device, dtype=dtype), False)

        self.weight = parameter(out_features, in_features)
        self.antiquant_scale = parameter(out_features)
        optional = {
            "antiquant_offset": antiquant_offset,
            "quant_scale": quant_scale,
            "quant_offset": quant_offset,
            "bias": bias,
        }
        for name, wanted in optional.items():
            self.register_parameter(name, parameter(out_features) if wanted else None)
        self.antiquant_group_size = antiquant_group_size
        self.inner_precise = inner_precise
        self.weight_dtype = weight_dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch_npu.npu_weight_quant_batchmatmul(
            x,
            self.weight.transpose(-1, -2),
            _by_column(self.antiquant_scale),
            _by_column(self.antiquant_offset),
            self.quant_scale,
            self.quant_offset,
            self.bias,
            self.antiquant_group_size,
            self.inner_precise,
            weight_dtype=self.weight_dtype,
        )


def _by_column(scales: Any) -> Any:
    """Scales by group, (out, groups), turned as the transposed weight is."""
    return scales.transpose(-1, -2) if scales is not None and scales.dim() == 2 else scales
