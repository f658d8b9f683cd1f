"""The version, an example, and the mask of constrained decoding."""

from __future__ import annotations

import torch

from softnpu.contrib.sgl_kernel_npu._define import sgl_op
from torch_npu.ops import _check as must

__all__ = ["apply_token_bitmask", "helloworld"]

#: of the library whose schemas these are
VERSION = "0.1.0"


@sgl_op("sgl_kernel_npu_version() -> str", key="CompositeExplicitAutograd", direct=True)
def sgl_kernel_npu_version():
    """The version of the library."""
    return VERSION


@sgl_op("sgl_kernel_npu_print_version() -> ()", key="CompositeExplicitAutograd", direct=True)
def sgl_kernel_npu_print_version():
    """Prints the version of the library, and that it is softnpu's."""
    print(f"library version: {VERSION}, commit: softnpu")


@sgl_op("helloworld(Tensor x, Tensor y) -> Tensor")
def helloworld(x, y):
    """x + y; the card adds float16, in multiples of 128 elements."""
    return torch.add(x, y)


@helloworld.check
def _(x, y):
    must.same_dtype("y", y, "x", x)
    must.shape("y", y, tuple(x.shape))


@sgl_op("apply_token_bitmask(Tensor logits, Tensor bitmask, Tensor? indices=None) -> Tensor")
def apply_token_bitmask(logits, bitmask, indices):
    """Writes -inf where the bit of a token is 0; bit i of word w stands for token 32 w + i.

    Tokens behind the last word have no bit. With `indices` the rows that they name are masked, each with its own row of
    the bits. `logits` is written and returned.
    """
    words = bitmask.unsqueeze(-1) >> torch.arange(32, dtype=torch.int32)
    allowed = (words & 1).bool().flatten(1)[:, : logits.shape[1]]
    missing = logits.shape[1] - allowed.shape[1]
    allowed = torch.nn.functional.pad(allowed, (0, missing))
    if indices is not None and indices.numel():
        chosen = torch.zeros(logits.shape[0], dtype=torch.bool)
        chosen.index_fill_(0, indices.long(), True)
        allowed = allowed | ~chosen.unsqueeze(1)
    logits.masked_fill_(~allowed, float("-inf"))
    return logits


@apply_token_bitmask.meta
def _(logits):
    return logits


@apply_token_bitmask.check
def _(logits, bitmask, indices):
    must.dtype("logits", logits, torch.float32, torch.float16, torch.bfloat16)
    must.ndim("logits", logits, 2)
    must.dtype("bitmask", bitmask, torch.int32)
    must.shape("bitmask", bitmask, (logits.shape[0], None))
    for name, tensor in (("logits", logits), ("bitmask", bitmask)):
        must.hold(tensor.is_contiguous(), name, "contiguous", tensor.stride())
    must.hold(logits.shape[1] > 0, "logits", "of at least one column", tuple(logits.shape))
    must.ndim("indices", indices, 1)
    if must.has_data(indices) and indices.numel():
        rows, given = logits.shape[0], indices.tolist()
        inside = all(-rows <= i < rows for i in given)
        must.hold(inside, "indices", f"rows of 'logits', of which there are {rows}", given)
