"""ModulatedDeformConv (DCNv2): convolution that learns where to look, by npu_deformable_conv2d."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn.modules.utils import _pair

from torch_npu.contrib._names import torch_npu

__all__ = ["ModulatedDeformConv", "ModulatedDeformConv2dFunction"]


def _options(weight: torch.Tensor, ctx: Any) -> dict[str, Any]:
    return {
        "kernel_size": [weight.shape[3], weight.shape[2]],
        "stride": [1, 1, ctx.stride, ctx.stride],
        "padding": [ctx.padding] * 4,
        "dilation": [1, 1, ctx.dilation, ctx.dilation],
        "groups": ctx.groups,
        "deformable_groups": ctx.deformable_groups,
        "modulated": True,
    }


class ModulatedDeformConv2dFunction(torch.autograd.Function):
    """The operator with offsets as mmcv orders them: (y, x) for each point of the kernel."""

    @staticmethod
    def forward(  # type: ignore[no-untyped-def, override]
        ctx: Any,
        input_tensor,
        offset_ori,
        mask,
        weight,
        bias=None,
        with_bias=False,
        stride=1,
        padding=0,
        dilation=1,
        groups=1,
        deformable_groups=1,
        sort_index_for_npu_fp=None,
        sort_index_for_npu_bp=None,
    ):
        ctx.stride, ctx.padding, ctx.dilation = stride, padding, dilation
        ctx.groups, ctx.deformable_groups, ctx.with_bias = groups, deformable_groups, with_bias
        ctx.back = sort_index_for_npu_bp
        x = input_tensor.float()
        offsets = offset_ori.float().index_select(1, sort_index_for_npu_fp)
        places = torch.cat([offsets, mask.float()], dim=1)
        output, sampled = torch_npu.npu_deformable_conv2d(
            x, weight, places, bias, **_options(weight, ctx)
        )
        ctx.save_for_backward(x, weight, sampled, places)
        return output

    @staticmethod
    def backward(ctx: Any, grad_output):  # type: ignore[no-untyped-def, override]
        x, weight, sampled, places = ctx.saved_tensors
        grad_input, grad_weight, grad_places, grad_bias = torch_npu.npu_deformable_conv2dbk(
            x, grad_output, sampled, weight, places, **_options(weight, ctx)
        )
        grad_offset = grad_places.index_select(1, ctx.back)
        grad_mask = grad_places[:, grad_offset.shape[1] :]
        return (
            grad_input,
            grad_offset,
            grad_mask,
            grad_weight,
            grad_bias if ctx.with_bias else None,
            *(None,) * 8,
        )


class ModulatedDeformConv(nn.Module):
    """Deformable convolution with a mask (DCNv2), in float32.

    Args:
        in_channels: channels of the image.
        out_channels: channels of the result.
        kernel_size: of the convolution.
        stride: of the convolution, one number.
        padding: zeros around the image, one number.
        dilation: distance of the points of the kernel.
        groups: blocks of channels that do not see each other.
        deformable_groups: blocks of channels with offsets of their own.
        bias: whether a bias is learnt.
        pack: whether the offsets and the mask come from a convolution inside; otherwise the input is
            (image, offset, mask).
    """

    def __init__(
        self,
        in_channels,
        out_channels,
        kernel_size,
        stride=1,
        padding=0,
        dilation=1,
        groups=1,
        deformable_groups=1,
        bias=True,
        pack=True,
    ):
        super().__init__()
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size = _pair(kernel_size)
        self.stride, self.padding, self.dilation = stride, padding, dilation
        self.groups, self.deformable_groups = groups, deformable_groups
        self.with_bias, self.pack = bias, pack
        rows, columns = self.kernel_size
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels // groups, rows, columns))
        zeros = torch.zeros(out_channels)
        self.bias: torch.Tensor = nn.Parameter(zeros) if bias else zeros
        if pack:
            self.conv_offset = nn.Conv2d(
                in_channels,
                deformable_groups * 3 * rows * columns,
                kernel_size=self.kernel_size,
                stride=_pair(stride),
                padding=_pair(padding),
                bias=True,
            )
        self.split_num = deformable_groups * 2 * rows * columns
        # the operator wants all x before all y
        forward = [*range(1, self.split_num, 2), *range(0, self.split_num, 2)]
        self.sort_index_for_npu_fp = torch.tensor(forward, dtype=torch.int32)
        self.sort_index_for_npu_bp = torch.argsort(self.sort_index_for_npu_fp).int()
        self.init_param()

    def init_param(self):
        """Uniform weights; no offsets and an even mask at first."""
        bound = 1.0 / math.sqrt(self.in_channels * math.prod(self.kernel_size))
        with torch.no_grad():
            self.weight.uniform_(-bound, bound)
            self.bias.zero_()
            if self.pack:
                self.conv_offset.weight.zero_()
                nn.init.zeros_(self.conv_offset.get_parameter("bias"))

    def forward(self, x):
        if self.pack:
            out = self.conv_offset(x)
            offset = out[:, : self.split_num]
            mask = torch.sigmoid(out[:, self.split_num :])
        else:
            x, offset, mask = x
        self.sort_index_for_npu_fp = self.sort_index_for_npu_fp.to(x.device)
        self.sort_index_for_npu_bp = self.sort_index_for_npu_bp.to(x.device)
        if not self.with_bias:
            self.bias = self.bias.to(x.device)
        return ModulatedDeformConv2dFunction.apply(
            x,
            offset,
            mask,
            self.weight,
            self.bias,
            self.with_bias,
            self.stride,
            self.padding,
            self.dilation,
            self.groups,
            self.deformable_groups,
            self.sort_index_for_npu_fp,
            self.sort_index_for_npu_bp,
        )


DCNv2 = ModulatedDeformConv
