"""The arithmetic of npu_grouped_matmul: a group's product in each form, the loop over groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_npu.ops._math import wide
from torch_npu.ops._native import native_half
from torch_npu.ops._shared._gemm import antiquantize, matrix_shape, product, unpack_matrix
from torch_npu.ops._shared._packing import unpack_int4
from torch_npu.ops._shared._rounding import saturate
from torch_npu.ops._shared._scales import PACKED, offset_of, scale_of
from torch_npu.ops._shared._sigmoid import FAST_GELU, swish
from torch_npu.ops.matmul._groups import Group
from torch_npu.ops.matmul.npu_quant_matmul import A8W4_SHIFT, block_product, exact_product

Tensors = Sequence[torch.Tensor] | None

#: upstream's `act_type`; 3 is not used
ACTIVATIONS: dict[int, Callable[[torch.Tensor], torch.Tensor]] = {
    0: lambda x: x,
    1: torch.relu,
    2: lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    4: lambda x: swish(x, FAST_GELU),
    5: swish,
}


@dataclass
class Forms:
    """The parameters beside x and weight, and how a group finds its own."""

    weight: Sequence[torch.Tensor]
    bias: Tensors = None
    scale: Tensors = None
    antiquant_scale: Tensors = None
    antiquant_offset: Tensors = None
    act_type: int = 0

    @property
    def single(self) -> bool:
        """Whether one tensor of three dimensions holds the weights of all groups."""
        return len(self.weight) == 1 and self.weight[0].dim() == 3

    @property
    def count(self) -> int:
        return self.weight[0].shape[0] if self.single else len(self.weight)

    def weight_of(self, group: int) -> torch.Tensor:
        return self.weight[0][group] if self.single else self.weight[group]

    def of(self, name: str, group: int) -> torch.Tensor | None:
        values: Any = getattr(self, name)
        if not values:
            return None
        return values[0][group] if self.single else values[group]

    @property
    def weights(self) -> Sequence[torch.Tensor]:
        """The matrix of each group."""
        return self.weight[0].unbind(0) if self.single else self.weight

    @property
    def biases(self) -> Sequence[torch.Tensor | None]:
        """The bias of each group."""
        if not self.bias:
            return [None] * self.count
        return self.bias[0].unbind(0) if self.single else self.bias

    def quantized(self, x: torch.Tensor) -> bool:
        """Whether x itself holds integers or 8-bit floats."""
        return not x.is_floating_point() or x.dtype.itemsize == 1

    def plain(self, x: torch.Tensor) -> bool:
        return not self.quantized(x) and not self.antiquant_scale


def one_group(
    forms: Forms, group: int, x: torch.Tensor, per_token: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    """The result of one group for its rows of x."""
    weight, bias = forms.weight_of(group), forms.of("bias", group)
    if not forms.quantized(x):
        antiquant = forms.of("antiquant_scale", group)
        if antiquant is not None:
            weight = antiquantize(weight, antiquant, forms.of("antiquant_offset", group))
        y = product(x, weight)
        return (y if bias is None else y + bias).to(dtype)
    scale = forms.of("scale", group)
    values = unpack_int4(x) if x.dtype == torch.int32 else x
    matrix = unpack_matrix(weight)
    left = None if per_token is None else per_token.reshape(-1, 1).float()
    if weight.dtype == torch.int32:
        assert scale is not None
        if x.dtype == torch.int8:
            values = values.to(torch.int16) - A8W4_SHIFT
        y = block_product(values, matrix, None, scale_of(scale).reshape(-1, matrix.shape[-1]))
        y = y if bias is None else y + bias
        y = y if left is None else y * left
    else:
        y = exact_product(values, matrix)
        if bias is not None and bias.dtype == torch.int32:
            y, bias = y + bias, None
        if dtype == torch.int32:
            return y
        y = y.float() if scale is None else y.float() * scale_of(scale)
        y = y if left is None else y * left
        y = y if bias is None else y + bias.float()
    y = ACTIVATIONS[forms.act_type](y)
    if dtype == torch.int8:
        if scale is not None and scale.dtype in PACKED:
            y = y + offset_of(scale)
        return saturate(y, torch.int8)
    return y.to(dtype)


def _widened(weights: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """The weights in fp32, one at a time in a shared buffer, which so stays in the cache."""
    buffer: torch.Tensor | None = None
    for weight in weights:
        if buffer is None or buffer.shape != weight.shape or buffer.stride() != weight.stride():
            buffer = torch.empty_like(weight, dtype=torch.float32)
        yield buffer.copy_(weight)


def _plain_products(
    outs: Sequence[torch.Tensor],
    parts: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor | None],
) -> None:
    """part @ weight + bias into each out, all in fp32 (or fp64) but for weights of half precision; or all of them in
    half precision that the CPU multiplies itself."""
    wide_weights = weights if weights[0].dtype == parts[0].dtype else _widened(weights)
    for out, part, weight, bias in zip(outs, parts, wide_weights, biases, strict=True):
        if bias is None:
            torch.mm(part, weight, out=out)
        else:
            torch.addmm(bias.to(out.dtype), part, weight, out=out)


def separate(
    forms: Forms, x: Sequence[torch.Tensor], per_token: Tensors, dtype: torch.dtype
) -> list[torch.Tensor]:
    """Every x with its own weight: 2 to 6 dimensions, as many results."""
    results = []
    for place, part in enumerate(x):
        token = per_token[place] if per_token else None
        y = one_group(forms, place, part.reshape(-1, part.shape[-1]), token, dtype)
        results.append(y.reshape(*part.shape[:-1], y.shape[-1]))
    return results


def joined(
    forms: Forms,
    x: Sequence[torch.Tensor],
    per_token: Tensors,
    groups: Sequence[Group],
    dtype: torch.dtype,
) -> list[torch.Tensor]:
    """One result with the rows of all groups in order; rows of no group are zero."""
    rows, columns = sum(t.shape[0] for t in x), matrix_shape(forms.weight[0])[1]
    y = x[0].new_empty(rows, columns, dtype=_accumulator(forms, x[0], dtype))
    sizes = [g.size for g in groups]
    *outs, tail = y.split_with_sizes([*sizes, rows - sum(sizes)])
    tail.zero_()
    _rows(forms, x, per_token, groups, outs)
    return [y.to(dtype)]


def split(
    forms: Forms,
    x: Sequence[torch.Tensor],
    per_token: Tensors,
    groups: Sequence[Group],
    dtype: torch.dtype,
) -> list[torch.Tensor]:
    """One result for each group."""
    widths = [matrix_shape(weight)[1] for weight in forms.weight]
    kind = _accumulator(forms, x[0], dtype)
    outs = [x[0].new_empty(g.size, widths[g.weight], dtype=kind) for g in groups]
    _rows(forms, x, per_token, groups, outs)
    return [out.to(dtype) for out in outs]


def _accumulator(forms: Forms, x: torch.Tensor, dtype: torch.dtype) -> torch.dtype:
    """The dtype in which groups of rows are computed: fp32, unless the CPU itself adds up in fp32 and rounds once."""
    if not forms.plain(x) or dtype == torch.float64:
        return dtype
    whole = not forms.bias and x.dtype == forms.weight[0].dtype == dtype
    return dtype if whole and native_half(dtype) else torch.float32


def _rows(
    forms: Forms,
    x: Sequence[torch.Tensor],
    per_token: Tensors,
    groups: Sequence[Group],
    outs: Sequence[torch.Tensor],
) -> None:
    """The products of groups of rows, each into its own result; in fp32 where they are plain."""
    plain = forms.plain(x[0])
    values = [wide(t) for t in x] if plain and outs and outs[0].dtype != x[0].dtype else x
    sizes = [g.size for g in groups]

    def cut(whole: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        if len(x) > 1:
            return whole
        return whole[0].split_with_sizes([*sizes, whole[0].shape[0] - sum(sizes)])[:-1]

    parts = cut(values)
    busy = [i for i, size in enumerate(sizes) if size]
    if plain and busy:
        weights, biases = forms.weights, forms.biases
        _plain_products(
            [outs[i] for i in busy],
            [parts[i] for i in busy],
            [weights[groups[i].weight] for i in busy],
            [biases[groups[i].weight] for i in busy],
        )
        return
    tokens = cut(per_token) if per_token else [None] * len(groups)
    for i in busy:
        outs[i].copy_(one_group(forms, groups[i].weight, parts[i], tokens[i], outs[i].dtype))


def depths(
    forms: Forms, x: torch.Tensor, groups: Sequence[Group], dtype: torch.dtype, stacked: bool
) -> list[torch.Tensor]:
    """Groups of K: columns of x times rows of the weight; stacked, or a result each. Depths of no group count for nothing."""
    sizes = [g.size for g in groups]
    kind = dtype if dtype == torch.float64 else torch.float32
    left_over = x.shape[1] - sum(sizes)
    one = len(forms.weight) == 1
    whole_weight = forms.weight[0]
    weights: Sequence[torch.Tensor] = forms.weight
    if one:
        weights = whole_weight.split_with_sizes([*sizes, whole_weight.shape[0] - sum(sizes)])[:-1]
    if stacked:
        whole = x.new_zeros(len(groups), x.shape[0], weights[0].shape[-1], dtype=kind)
        outs = whole.unbind(0)
    else:
        outs = tuple(x.new_zeros(x.shape[0], w.shape[-1], dtype=kind) for w in weights)
    parts = wide(x).split_with_sizes([*sizes, left_over], 1)
    busy = [i for i, size in enumerate(sizes) if size]
    if busy:
        _plain_products(
            [outs[i] for i in busy],
            [parts[i] for i in busy],
            [weights[i] for i in busy],
            [None] * len(busy),
        )
    return [whole.to(dtype)] if stacked else [out.to(dtype) for out in outs]
