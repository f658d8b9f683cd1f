"""LoRA of sgl-kernel-npu: adapters of different ranks, and results in slices."""

from __future__ import annotations

import torch

from softnpu.contrib.kernels.lora import OPERATORS, sequences
from softnpu.contrib.sgl_kernel_npu._define import sgl_op
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide

__all__: list[str] = []

for _schema, _function in OPERATORS.items():
    sgl_op(_schema, product=True)(_function)

_HALVES = (torch.float16, torch.bfloat16)
_SHRINK = (
    "Tensor! x, Tensor! weight, Tensor! lora_indices, Tensor! seq_len, Tensor! lora_ranks, "
    "Tensor! lora_scales, Tensor! y"
)
_EXPAND = (
    "Tensor! x, Tensor! weight, Tensor! lora_indices, Tensor! seq_len, Tensor! lora_ranks, "
    "Tensor! sliceOffsets, Tensor! y"
)


def _plain(weight):
    return weight.squeeze(1) if weight.dim() == 4 else weight


def _shrink(x, weight, lora_indices, seq_len, lora_ranks, lora_scales, y, slices):
    weight, ranks = _plain(weight), lora_ranks.long() * slices
    index, columns, rows = sequences(x, lora_indices, seq_len), torch.arange(y.shape[1]), wide(x)
    result = wide(y)
    for adapter in range(weight.shape[0]):
        found = rows @ wide(weight[adapter, : y.shape[1]]).t() * wide(lora_scales[adapter])
        own = (index == adapter).unsqueeze(1) & (columns < ranks[adapter])
        result = torch.where(own, found, result)
    y.copy_(result)


@sgl_op(f"sgemmv_shrink({_SHRINK}) -> ()", product=True)
def sgemmv_shrink(x, weight, lora_indices, seq_len, lora_ranks, lora_scales, y):
    """y[t, :r] = scale * W x[t] with the first r rows of W, where r and scale are those of the token's adapter.

    The adapter of the tokens of sequence s is lora_indices[s], negative for none; what has none is left as it is.
    weight (adapters, rows, hidden), or with a 1 after the first.
    """
    _shrink(x, weight, lora_indices, seq_len, lora_ranks, lora_scales, y, 1)


@sgl_op(f"sgemmc_shrink({_SHRINK}, int slice_count) -> ()", product=True)
def sgemmc_shrink(x, weight, lora_indices, seq_len, lora_ranks, lora_scales, y, slice_count):
    """`sgemmv_shrink` with `slice_count` times as many rows as the rank of the adapter."""
    _shrink(x, weight, lora_indices, seq_len, lora_ranks, lora_scales, y, slice_count)


def _expand(x, weight, lora_indices, seq_len, lora_ranks, sliceOffsets, y):
    """y[t, a:b] += W[a:b, :r] x[t, s r : (s + 1) r] for each slice s of the columns, from a to b."""
    weight, ranks, slices = _plain(weight), lora_ranks.long(), sliceOffsets.shape[0] - 1
    widest = x.shape[1] // slices
    index, rows, result = sequences(x, lora_indices, seq_len), wide(x), wide(y)
    columns, channel = torch.arange(y.shape[1]), torch.arange(widest)
    offsets = sliceOffsets.long()
    for adapter in range(weight.shape[0]):
        rank, own = ranks[adapter], (index == adapter).unsqueeze(1)
        for part in range(slices):
            place = (part * rank + channel).clamp(max=max(x.shape[1] - 1, 0))
            given = rows[:, place] * (channel < rank)
            found = given @ wide(weight[adapter, :, :widest]).t()
            inside = (columns >= offsets[part]) & (columns < offsets[part + 1])
            result = torch.where(own & inside, result + found, result)
    y.copy_(result)
    return y


for _name in ("sgemmv_expand", "sgemmc_expand"):
    _operator = sgl_op(f"{_name}({_EXPAND}) -> Tensor", product=True)(_expand)

    @_operator.meta
    def _(y):
        return y

    @_operator.check
    def _(sliceOffsets, y, **rest):
        must.dtype("y", y, *_HALVES)
        must.dtype("sliceOffsets", sliceOffsets, torch.int32)
        must.ndim("sliceOffsets", sliceOffsets, 1)
        several = sliceOffsets.shape[0] > 1
        must.hold(several, "sliceOffsets", "of at least 2 elements", tuple(sliceOffsets.shape))
        _check(y=y, **rest)
        rows = _plain(rest["weight"]).shape[1]
        must.hold(rows >= y.shape[1], "weight", f"of {y.shape[1]} rows, the columns of 'y'", rows)
        widest = rest["x"].shape[1] // (sliceOffsets.shape[0] - 1)
        columns = rest["weight"].shape[-1]
        must.hold(columns >= widest, "weight", f"of at least {widest} columns", columns)


for _operator in (sgemmv_shrink, sgemmc_shrink):

    @_operator.meta
    def _():
        return None

    @_operator.check
    def _(x, weight, lora_scales, y, **rest):
        slices = rest.pop("slice_count", 1)
        must.hold(slices > 0, "slice_count", "positive", slices)
        must.dtype("x", x, *_HALVES)
        must.dtype("lora_scales", lora_scales, torch.float16)
        _check(x=x, weight=weight, y=y, **rest)
        must.hold(x.shape[1] > y.shape[1], "x", f"wider than 'y' ({y.shape[1]})", tuple(x.shape))
        shape = tuple(_plain(weight).shape)
        must.hold(shape[1] >= y.shape[1], "weight", f"of {y.shape[1]} rows, as 'y'", shape)
        must.hold(shape[2] == x.shape[1], "weight", f"of {x.shape[1]} columns, as 'x'", shape)
        ranks = rest["lora_ranks"]
        must.hold(
            lora_scales.shape[0] >= shape[0], "lora_scales", f"of {shape[0]} adapters",
            tuple(lora_scales.shape),
        )  # fmt: skip
        if must.has_data(ranks):
            limit = y.shape[1] // slices
            fits = all(0 <= rank <= limit for rank in ranks.tolist())
            must.hold(fits, "lora_ranks", f"from 0 to {limit}", ranks.tolist())


def _check(x, weight, y, lora_indices, seq_len, lora_ranks):
    must.ndim("x", x, 2)
    must.ndim("y", y, 2)
    must.ndim("weight", weight, 3, 4)
    must.hold(weight.dim() == 3 or weight.shape[1] == 1, "weight", "(adapters, 1, rows, columns)",
              tuple(weight.shape))  # fmt: skip
    must.shape("y", y, (x.shape[0], None))
    for name, tensor in (
        ("lora_indices", lora_indices),
        ("seq_len", seq_len),
        ("lora_ranks", lora_ranks),
    ):
        must.dtype(name, tensor, torch.int32)
        must.ndim(name, tensor, 1)
    adapters = weight.shape[0]
    fits = lora_ranks.shape[0] >= adapters
    must.hold(fits, "lora_ranks", f"of {adapters} adapters", tuple(lora_ranks.shape))
    count = seq_len.shape[0]
    must.hold(lora_indices.shape[0] >= count, "lora_indices", f"of {count} sequences",
              tuple(lora_indices.shape))  # fmt: skip
    if must.has_data(lora_indices):
        given = lora_indices.tolist()[:count]
        must.hold(all(i < adapters for i in given), "lora_indices", f"below {adapters}", given)
