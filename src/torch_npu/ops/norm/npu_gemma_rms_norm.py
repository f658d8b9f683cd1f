"""npu_gemma_rms_norm: root-mean-square normalization with the scale 1 + gamma."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._native import fits
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._rms import check_gamma, rms_normalize


@npu_op(
    "npu_gemma_rms_norm(Tensor self, Tensor gamma, float epsilon=1e-06) -> (Tensor, Tensor)",
    compiled="fuse",
)
def npu_gemma_rms_norm(self, gamma, epsilon):
    r"""The RMS norm of the Gemma models, whose scale is stored as its distance from one.

    $$ y = \frac{x}{\sqrt{\mathrm{mean}(x^2) + \epsilon}} \cdot (1 + \gamma) $$

    Args:
        self: x, 1 to 8 dimensions; float16, bfloat16 or float32.
        gamma: of shape `self.shape[n:]` and the dtype of `self` (on Ascend950 also float32).
        epsilon: added to the mean square; not negative.

    Returns:
        y with the shape and dtype of `self`, and rstd = 1 / rms in float32, of shape
        `self.shape[:n]` followed by ones for the normalized dimensions.
    """
    normed, rstd = rms_normalize(self, gamma, epsilon)
    return (normed * (1 + wide(gamma))).to(self.dtype), rstd


@npu_gemma_rms_norm.check
def _(self, gamma, epsilon):
    check_gamma("self", self, gamma, single=chips.current().family == "A5")
    must.hold(epsilon >= 0, "epsilon", "0 or positive", epsilon)


@npu_gemma_rms_norm.native
def _(self, gamma, epsilon):
    if not fits(self, gamma):
        return NotImplemented
    return torch.ops.softnpu.rms_norm(self, None, gamma, epsilon, shift=1.0)[:2]


npu_gemma_rms_norm.samples = [
    Sample(lambda make: (make(4, 3, 32), make(32))),
    Sample(lambda make: (make(2, 3, 8), make(3, 8)), {"epsilon": 1e-5}),
    Sample(lambda make: (make(4, 64, dtype=torch.float16), make(64, dtype=torch.float16))),
]
