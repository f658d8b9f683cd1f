"""LinearA8W8Quant: LinearQuant under its old name, with stricter checks."""

from __future__ import annotations

import torch

from torch_npu._errors import ErrCode, ops_error
from torch_npu.contrib._checks import deprecated
from torch_npu.contrib.module._quantized import QuantizedLinear

__all__ = ["LinearA8W8Quant"]

_DTYPES: dict[str, tuple[torch.dtype, ...]] = {
    "scale": (torch.int64, torch.float32, torch.bfloat16),
    "offset": (torch.float32,),
    "bias": (torch.int32, torch.bfloat16, torch.float16, torch.float32),
    "pertoken_scale": (torch.float32,),
}
_OUTPUTS = (torch.int8, torch.float16, torch.bfloat16)


class LinearA8W8Quant(QuantizedLinear):
    """See `LinearQuant`, which replaces it; the dtypes of all parameters are checked here."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        offset: bool = False,
        pertoken_scale: bool = False,
        device=None,
        dtype=None,
        output_dtype=None,
    ) -> None:
        deprecated("module.LinearA8W8Quant", "torch_npu.contrib.module.LinearQuant")
        super().__init__(
            in_features,
            out_features,
            bias=bias,
            offset=offset,
            pertoken_scale=pertoken_scale,
            device=device,
            dtype=dtype,
            output_dtype=output_dtype,
        )

    def _check(self, x: torch.Tensor) -> None:
        super()._check(x)
        for name, allowed in _DTYPES.items():
            parameter = getattr(self, name)
            if parameter is not None and parameter.dtype not in allowed:
                words = " or ".join(str(d) for d in allowed)
                raise ValueError(
                    f"{name} should be {words} datatype, but now it is {parameter.dtype}."
                    + ops_error(ErrCode.TYPE)
                )
        if self.output_dtype is not None and self.output_dtype not in _OUTPUTS:
            raise ValueError(
                "output_dtype should be torch.int8, torch.float16 or torch.bfloat16, but now it is "
                f"{self.output_dtype}." + ops_error(ErrCode.TYPE)
            )
