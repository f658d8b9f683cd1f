"""QuantConv2d: convolution of quantized images and weights, scaled back."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.utils import _pair
from torch.nn.parameter import Parameter

from torch_npu.contrib._checks import require
from torch_npu.contrib._names import torch_npu

__all__ = ["QuantConv2d"]


class QuantConv2d(nn.Module):
    """(image * weight + bias) * scale, by `torch_npu.npu_quant_conv2d`.

    Args:
        in_channels: channels of the image.
        out_channels: channels of the result.
        kernel_size: of the convolution.
        output_dtype: of the result: torch.float16, torch.bfloat16, torch.float32 or torch_npu.hifloat8.
        stride: of the convolution.
        padding: around the image.
        dilation: distance of the points of the kernel.
        groups: blocks of channels that do not see each other.
        bias: whether there is a `bias`.
        offset: False; results are not quantized again.
        offset_x: the number that padding consists of.
        round_mode: how results are rounded.
        input_dtype: torch_npu.hifloat8 where the image carries it.
        weight_dtype: torch_npu.hifloat8 where the weight carries it.
        device: where the parameters are made.
        dtype: of `weight` and `bias` when they are made.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size,
        output_dtype: int,
        stride=1,
        padding=0,
        dilation=1,
        groups: int = 1,
        bias: bool = True,
        offset: bool = False,
        offset_x: int = 0,
        round_mode: str = "rint",
        input_dtype: int | None = None,
        weight_dtype: int | None = None,
        device=None,
        dtype=None,
    ) -> None:
        super().__init__()
        require(not offset, "QuantConv2d", "offset", "False", offset)
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size, self.stride = _pair(kernel_size), _pair(stride)
        self.padding, self.dilation = _pair(padding), _pair(dilation)
        self.offset_x, self.round_mode = offset_x, round_mode
        self.input_dtype, self.weight_dtype = input_dtype, weight_dtype
        self.output_dtype = output_dtype
        shape = (out_channels, in_channels // groups, *self.kernel_size)
        self.weight = Parameter(torch.empty(shape, device=device, dtype=dtype), False)
        scale = torch.empty(out_channels, device=device, dtype=torch.int64)
        self.scale = Parameter(scale, False)
        own = Parameter(torch.empty(out_channels, device=device, dtype=dtype), False)
        self.register_parameter("bias", own if bias else None)
        self.register_parameter("offset", None)

    def forward(self, quant_conv2d_input: torch.Tensor) -> torch.Tensor:
        scale = self.scale
        if scale.dtype == torch.float32:
            scale = torch_npu.npu_trans_quant_param(scale)
        return torch_npu.npu_quant_conv2d(
            quant_conv2d_input,
            self.weight,
            scale,
            self.stride,
            self.padding,
            self.dilation,
            self.groups,
            self.offset_x,
            self.round_mode,
            self.output_dtype,
            self.bias,
            self.offset,
            self.input_dtype,
            self.weight_dtype,
        )
