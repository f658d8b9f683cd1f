"""Constraints that the sparse attentions and their gradient share."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops.attention import _sparse

HEADS = (1, 2, 4, 8, 16, 32, 64, 128)


def heads(heads, new=range(1, 129)):
    """A power of two up to 128; Ascend950 takes those of `new`."""
    counts = new if _sparse.new_chip() else HEADS
    expected = (
        "of 1 to 128 heads" if isinstance(counts, range) else f"of {must.one_of(counts)} heads"
    )
    must.hold(heads in counts, "query", expected, heads)


def sinks(sinks, query):
    """A float32 for each head, on Ascend950."""
    if sinks is not None:
        _sparse.check_family("sinks", "A5")
        must.dtype("sinks", sinks, torch.float32)
        must.shape("sinks", sinks, (query.shape[-2],))


def indices(query, key, indices, size, layout_kv, most, none=False):
    """The positions and how many tokens each stands for; `none`: there may be none at all."""
    must.dtype("sparse_indices", indices, torch.int32)
    must.shape("sparse_indices", indices, (*query.shape[:-2], 1, None))
    fits = none or indices.shape[-1] > 0
    must.hold(fits, "sparse_indices", "not empty", tuple(indices.shape))
    if _sparse.new_chip():
        must.hold(size == 1, "sparse_block_size", "1 on Ascend950", size)
    powers = [2**i for i in range(8) if 2**i <= most]
    must.hold(size in powers, "sparse_block_size", f"a power of two up to {most}", size)
    if layout_kv == "PA_BSND":
        block = key.shape[1]
        expected = f"a divisor of the {block} tokens of a block"
        must.hold(block % size == 0, "sparse_block_size", expected, size)
