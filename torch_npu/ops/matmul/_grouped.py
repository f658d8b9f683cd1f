"""The arithmetic of npu_grouped_matmul: one group's product in each of its forms, and the loop over groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_npu.ops._math import wide
from torch_npu.ops.activation._sigmoid import FAST_GELU, swish
from torch_npu.ops.matmul._gemm import antiquantise, matrix_shape, product, unpack_matrix
from torch_npu.ops.matmul._groups import Group
from torch_npu.ops.matmul._scales import PACKED, offset_of, scale_of
from torch_npu.ops.matmul.npu_quant_matmul import A8W4_SHIFT, block_product, exact_product
from torch_npu.ops.quant._packing import unpack_int4
from torch_npu.ops.quant._rounding import saturate

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

    def of(self, name: str, group: int) -> torch.Tensor | None:
        values: Any = getattr(self, name)
        if not values:
            return None
        return values[0][group] if self.single else values[group]

    def quantised(self, x: torch.Tensor) -> bool:
        """Whether x itself holds integers or 8-bit floats."""
        return not x.is_floating_point() or x.dtype.itemsize == 1

    def plain(self, x: torch.Tensor) -> bool:
        return not self.quantised(x) and not self.antiquant_scale


def one_group(
    forms: Forms, group: int, x: torch.Tensor, per_token: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    """The result of one group for its rows of x."""
    weight, bias = forms.of("weight", group), forms.of("bias", group)
    if not forms.quantised(x):
        antiquant = forms.of("antiquant_scale", group)
        if antiquant is not None:
            weight = antiquantise(weight, antiquant, forms.of("antiquant_offset", group))
        y = product(x, weight)
        return (y if bias is None else y + bias).to(dtype)
    scale = forms.of("scale", group)
    values = unpack_int4(x) if x.dtype == torch.int32 else x
    matrix = unpack_matrix(weight)
    left = None if per_token is None else per_token.reshape(-1, 1).float()
    if weight.dtype == torch.int32:
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
        packed = scale is not None and scale.dtype in PACKED
        return saturate(y + offset_of(scale) if packed else y, torch.int8)
    return y.to(dtype)


class PlainProduct:
    """x @ weight + bias of floats straight into the result, with one widened copy of a weight at a time.

    Half precision is widened to fp32 in buffers that the groups share: a weight is read once and written
    once into memory that stays in the cache, which is what a single product would do.
    """

    def __init__(self) -> None:
        self._weight: torch.Tensor | None = None

    def _widened(self, weight: torch.Tensor) -> torch.Tensor:
        same = self._weight is not None and self._weight.shape == weight.shape
        if not same or self._weight.stride() != weight.stride():
            self._weight = torch.empty_like(weight, dtype=torch.float32)
        return self._weight.copy_(weight)

    def into(
        self, out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> None:
        """Writes the product of matrices into `out`."""
        direct = x.dtype == weight.dtype == out.dtype and wide(x) is x
        if direct and (bias is None or bias.dtype == x.dtype):
            if bias is None:
                torch.mm(x, weight, out=out)
            else:
                torch.addmm(bias, x, weight, out=out)
            return
        widened = weight if direct else self._widened(weight)
        y = torch.mm(wide(x), widened)
        out.copy_(y if bias is None else y.add_(bias))


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
    y = x[0].new_empty(sum(t.shape[0] for t in x), matrix_shape(forms.weight[0])[1], dtype=dtype)
    y[sum(g.size for g in groups) :].zero_()
    _rows(forms, x, per_token, groups, [y.narrow(0, g.start, g.size) for g in groups])
    return [y]


def split(
    forms: Forms,
    x: Sequence[torch.Tensor],
    per_token: Tensors,
    groups: Sequence[Group],
    dtype: torch.dtype,
) -> list[torch.Tensor]:
    """One result for each group."""
    widths = [matrix_shape(weight)[1] for weight in forms.weight]
    outs = [x[0].new_empty(g.size, widths[g.weight], dtype=dtype) for g in groups]
    _rows(forms, x, per_token, groups, outs)
    return outs


def _rows(
    forms: Forms,
    x: Sequence[torch.Tensor],
    per_token: Tensors,
    groups: Sequence[Group],
    outs: Sequence[torch.Tensor],
) -> None:
    """The products of groups of rows, each into its own result."""
    quick = PlainProduct() if forms.plain(x[0]) else None
    single = len(x) == 1
    for place, (group, out) in enumerate(zip(groups, outs, strict=True)):
        if not group.size:
            continue
        part = x[0].narrow(0, group.start, group.size) if single else x[place]
        if quick is not None:
            weight, bias = forms.of("weight", group.weight), forms.of("bias", group.weight)
            quick.into(out, part, weight, bias)
            continue
        token = None
        if per_token:
            whole = per_token[0 if single else place]
            token = whole.narrow(0, group.start, group.size) if single else whole
        out.copy_(one_group(forms, group.weight, part, token, out.dtype))


def depths(
    forms: Forms, x: torch.Tensor, groups: Sequence[Group], dtype: torch.dtype, stacked: bool
) -> list[torch.Tensor]:
    """Groups of K: each takes its columns of x and its rows of the weight; stacked, or a result each."""
    many = len(forms.weight) > 1
    rows, quick = x.shape[0], PlainProduct()
    if stacked:
        results = [x.new_zeros(len(groups), rows, forms.weight[0].shape[-1], dtype=dtype)]
        outs = list(results[0].unbind(0))
    else:
        widths = [forms.weight[i if many else 0].shape[-1] for i in range(len(groups))]
        results = outs = [x.new_zeros(rows, width, dtype=dtype) for width in widths]
    for group, out in zip(groups, outs, strict=True):
        if group.size:
            whole = forms.weight[group.weight if many else 0]
            part = whole if many else whole.narrow(0, group.start, group.size)
            quick.into(out, x.narrow(1, group.start, group.size), part, None)
    return results
