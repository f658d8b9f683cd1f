"""LinearQuant: a linear layer of int8 (or packed int4) inputs and weights."""

from __future__ import annotations

from torch_npu.contrib.module._quantized import QuantizedLinear

__all__ = ["LinearQuant"]


class LinearQuant(QuantizedLinear):
    """The product of quantized inputs and weights, scaled back.

    Args:
        in_features: size of an input.
        out_features: size of an output.
        bias: whether there is a `bias`, int32.
        offset: whether there is an `offset`, float32.
        pertoken_scale: whether there is a `pertoken_scale`, float32.
        device: where the parameters are made.
        dtype: of `weight` and `scale` when they are made.
        output_dtype: of the result; see `torch_npu.npu_quant_matmul`.

    `weight` (out_features, in_features) is int8, or int32 for packed int4; `scale` is float32, bfloat16 or int64.
    """
