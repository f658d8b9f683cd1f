"""npu_attention_update: attentions over parts of the keys, merged by their logsumexp."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _atb_rules as rules


@npu_op(
    "npu_attention_update(Tensor[] lse, Tensor[] local_out, int update_type) -> (Tensor, Tensor)"
)
def npu_attention_update(lse, local_out, update_type):
    r"""Merges the attentions of the same queries over different parts of the keys.

    $$ l = \log \sum_i e^{l_i}, \quad o = \sum_i o_i \, e^{l_i - l} $$

    A logsumexp of +inf marks a row that saw no key; it counts as -inf.

    Args:
        lse: 1 to 128 (Ascend950: 16) tensors $l_i$ of shape (rows,), float32.
        local_out: as many tensors $o_i$ of shape (rows, head_dim), float32, float16 or bfloat16; head_dim is a
            multiple of 8 from 8 to 512.
        update_type: 0 for o alone, 1 for o and l.

    Returns:
        o with the shape and dtype of a `local_out`, and l (rows,), float32; l is empty with `update_type` 0.

    Constraints: Atlas A2, A3 and Ascend950.
    """
    sums = torch.stack([t.masked_fill(t == torch.inf, -torch.inf) for t in lse])
    peak = sums.amax(0)
    total = peak + (sums - peak).exp().sum(0).log()
    weights = (sums - total).exp().unsqueeze(-1)
    merged = sum(w * wide(o) for w, o in zip(weights, local_out, strict=True))
    return merged.to(local_out[0].dtype), total if update_type == 1 else total.new_empty(0)


@npu_attention_update.check
def _(lse, local_out, update_type):
    rules.family("lse", "A2", "A3", "A5")
    must.choice("update_type", update_type, (0, 1))
    count = len(lse)
    most = 16 if chips.current().family == "A5" else 128
    must.hold(1 <= count <= most, "lse", f"of 1 to {most} tensors", count)
    same = len(local_out) == count
    must.hold(same, "local_out", f"of {count} tensors, as 'lse'", len(local_out), ErrCode.PARAM)
    first = local_out[0]
    must.dtype("local_out[0]", first, torch.float32, torch.float16, torch.bfloat16)
    must.ndim("local_out[0]", first, 2)
    rows, size = first.shape
    fine = 8 <= size <= 512 and size % 8 == 0
    must.hold(fine, "local_out[0]", "of a head size from 8 to 512, a multiple of 8", size)
    for i, (sums, out) in enumerate(zip(lse, local_out, strict=True)):
        must.dtype(f"lse[{i}]", sums, torch.float32)
        must.shape(f"lse[{i}]", sums, (rows,))
        must.same_dtype(f"local_out[{i}]", out, "local_out[0]", first)
        must.shape(f"local_out[{i}]", out, (rows, size))


npu_attention_update.samples = [
    Sample(lambda make: ([make(4), make(4, seed=2)], [make(4, 8), make(4, 8, seed=2)], 1)),
    Sample(
        lambda make: (
            [make(3, low=-5, high=5, seed=i) for i in range(3)],
            [make(3, 16, dtype=torch.bfloat16, seed=i) for i in range(3)],
            0,
        )
    ),
]
