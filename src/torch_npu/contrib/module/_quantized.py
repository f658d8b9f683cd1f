"""What LinearQuant and LinearA8W8Quant share."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parameter import Parameter

from torch_npu._errors import ErrCode, ops_error
from torch_npu.contrib._names import torch_npu


class QuantizedLinear(nn.Module):
    """Integer inputs times integer weights, by `npu_quant_matmul`; the parameters are filled by their owner."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        offset: bool = False,
        pertoken_scale: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        output_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.output_dtype = output_dtype

        def parameter(*shape: int, kind: torch.dtype | None = dtype) -> Parameter:
            return Parameter(torch.empty(shape, dtype=kind, device=device), False)

        self.weight = parameter(out_features, in_features)
        self.scale = parameter(out_features)
        optional = (
            ("offset", offset, torch.float32),
            ("pertoken_scale", pertoken_scale, torch.float32),
            ("bias", bias, torch.int32),
        )
        for name, wanted, kind in optional:
            self.register_parameter(name, parameter(out_features, kind=kind) if wanted else None)

    def _check(self, x: torch.Tensor) -> None:
        pair = (x.dtype, self.weight.dtype)
        if pair not in ((torch.int32, torch.int32), (torch.int8, torch.int8)):
            raise ValueError(
                "input and weight should be both torch.int32 or both torch.int8 datatype, but now input is "
                f"{x.dtype}, weight is {self.weight.dtype}." + ops_error(ErrCode.TYPE)
            )

    def forward(self, linear_quant_input: torch.Tensor) -> torch.Tensor:
        self._check(linear_quant_input)
        scale = self.scale
        if (
            self.pertoken_scale is None
            and scale.dtype == torch.float32
            and self.output_dtype not in (torch.bfloat16, torch.int32)
        ):
            scale = torch_npu.npu_trans_quant_param(scale, self.offset)
        return torch_npu.npu_quant_matmul(
            linear_quant_input,
            self.weight.transpose(-2, -1),
            scale,
            offset=self.offset,
            pertoken_scale=self.pertoken_scale,
            bias=self.bias,
            output_dtype=self.output_dtype,
        )
