"""npu_sim_exponential_: exponentially distributed numbers in place."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, kernel_generator, npu_op


@npu_op(
    "npu_sim_exponential_(Tensor(a!) self, float lambd=1, *, Generator? generator=None)"
    " -> Tensor(a!)",
    random=True,
    ge="SimThreadExponential",
)
def npu_sim_exponential_(self, lambd, generator):
    r"""Fills the tensor with exponentially distributed numbers.

    $$ x = -\frac{\ln(1 - u)}{\lambda}, \quad u \text{ uniform} $$

    Args:
        self: x, up to 8 dimensions; float16, bfloat16 or float32.
        lambd: lambda, positive; infinity gives zeros.
        generator: the generator of the device; None for its default one.

    Returns:
        `self`.

    Differs from upstream: the numbers are PyTorch's on the CPU, not those of the card's generator.
    """
    if lambd == float("inf"):
        return self.zero_()
    fresh = torch.empty_like(self, memory_format=torch.contiguous_format)
    return self.copy_(fresh.exponential_(lambd, generator=kernel_generator(generator)))


@npu_sim_exponential_.check
def _(self, lambd):
    must.dtype("self", self, torch.float16, torch.bfloat16, torch.float32)
    must.ndim("self", self, 0, 8)
    must.hold(lambd > 0, "lambd", "positive", lambd, upstream="expects lambd > 0.0")


@npu_sim_exponential_.meta
def _(self):
    return self


npu_sim_exponential_.samples = [
    Sample(lambda make: (make(4, 5),)),
    Sample(lambda make: (make(7, dtype=torch.bfloat16), 2.5)),
]
