"""_npu_quant_rms_norm: root-mean-square normalization with a bias, quantized to int8."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _atb_rules as rules


@npu_op(
    "atb::_npu_quant_rms_norm(Tensor self, Tensor gamma, Tensor beta, Tensor scale, Tensor offset, "
    "Tensor(a!) output, float eps=1e-05) -> ()",
    ge="RmsNorm",
)
def _npu_quant_rms_norm(self, gamma, beta, scale, offset, output, eps):
    r"""Normalizes the last dimension, adds a bias, quantizes to int8 and writes the result into `output`.

    $$ y = \frac{x}{\sqrt{\mathrm{mean}(x^2) + \epsilon}} \gamma + \beta, \quad
       output = \mathrm{clamp}(\mathrm{round}(y / scale + offset), -128, 127) $$

    Args:
        self: x, (..., n), float16 or bfloat16; n is a multiple of 16.
        gamma: (n,) or (1, ..., n), the dtype of `self`.
        beta: like `gamma`.
        scale: (1,), the dtype of `self`.
        offset: (1,), int8.
        output: int8, the shape of `self`, written.
        eps: the epsilon.

    Returns:
        Nothing.
    """
    x = wide(self)
    norm = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    value = norm * wide(gamma).view(-1) + wide(beta).view(-1)
    value = (value / wide(scale).view(1) + offset.view(1)).round()
    output.copy_(value.clamp(-128, 127).to(torch.int8))


@_npu_quant_rms_norm.check
def _(self, gamma, beta, scale, offset, output, eps):
    rules.family("self", "A2", "A3", "A5", "310P", "910A")
    must.dtype("self", self, *rules.FLOATS)
    must.hold(self.dim() >= 1, "self", "of at least 1 dimension", tuple(self.shape))
    for name, tensor in (("gamma", gamma), ("beta", beta), ("scale", scale)):
        must.same_dtype(name, tensor, "self", self)
    size = self.shape[-1]
    must.hold(size % 16 == 0, "self", "of a last dimension that is a multiple of 16", size)
    must.ndim("gamma", gamma, 1, 8)
    must.shape("gamma", gamma, (*(1,) * (gamma.dim() - 1), size))
    must.shape("beta", beta, tuple(gamma.shape))
    must.dtype("offset", offset, torch.int8)
    must.shape("scale", scale, (1,))
    must.shape("offset", offset, (1,))
    must.dtype("output", output, torch.int8)
    must.shape("output", output, tuple(self.shape))
    rules.written("output", output)
    must.hold(abs(eps) >= 2e-38, "eps", "not 0", eps)


@_npu_quant_rms_norm.meta
def _():
    return None


_npu_quant_rms_norm.samples = [
    Sample(
        lambda make: (
            make(3, 32, dtype=torch.float16),
            make(32, dtype=torch.float16),
            make(32, dtype=torch.float16),
            make(1, dtype=torch.float16, low=0.02, high=0.05),
            make(1, dtype=torch.int8, low=-5, high=5),
            make(3, 32, dtype=torch.int8, low=0, high=1),
        )
    ),
    Sample(
        lambda make: (
            make(2, 3, 16, dtype=torch.bfloat16),
            make(1, 16, dtype=torch.bfloat16),
            make(1, 16, dtype=torch.bfloat16),
            make(1, dtype=torch.bfloat16, low=0.02, high=0.05),
            make(1, dtype=torch.int8, low=-5, high=5),
            make(2, 3, 16, dtype=torch.int8, low=0, high=1),
        ),
        {"eps": 1e-3},
    ),
]
