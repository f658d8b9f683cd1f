"""npu_batch_gather_matmul: the low-rank product (LoRA) of each row's own adapter."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op

_ARGUMENTS = (
    "Tensor x, Tensor weight_b, Tensor indices, Tensor? weight_a=None, int layer_idx=0,"
    " float scale=1e-3, int y_offset=0, int y_slice_size=-1"
)


@npu_op(
    f"npu_batch_gather_matmul(Tensor self, {_ARGUMENTS}) -> Tensor",
    inplace=f"npu_batch_gather_matmul_(Tensor(a!) self, {_ARGUMENTS}) -> Tensor(a!)",
    ge="AddLora",
    product=True,
)
def npu_batch_gather_matmul(self, x, weight_b, indices, weight_a, layer_idx, scale, y_offset):
    r"""Adds to each row the product of its own low-rank adapter.

    $$ y_i = \mathrm{self}_i + \mathrm{scale} \cdot x_i A_{a_i}^T B_{a_i}^T $$

    in the columns from `y_offset` on; an index that has no adapter adds nothing.

    Args:
        self: (rows, n); float16.
        x: (rows, h), of the dtype of `self`.
        weight_b: B, (adapters, layers, columns, r), of the dtype of `self`.
        indices: a, (rows,) int32.
        weight_a: A, (adapters, layers, r, h); None for the identity, with h = r.
        layer_idx: the layer of the adapters.
        scale: the factor.
        y_offset: the first column that is added to.
        y_slice_size: at most the columns of `weight_b`; -1 for all of `self`. It changes no result.

    Returns:
        y, with the shape and dtype of `self`.

    Constraints:
        n, h, r and the columns are multiples of 16 up to 131072; with `weight_a` r is at most 128; at most 32 adapters
        and 32 layers.

    Both products and what they are multiplied by are rounded to float16, as upstream's test of the Atlas inference
    series expects to the bit.

    Differs from upstream: upstream has it on A2, A3 and the Atlas inference series only, here every chip
    computes it. `npu_batch_gather_matmul` leaves `self` as it is; upstream returns `self`.
    """
    columns = weight_b.shape[2]
    chosen = indices.long()
    known = (chosen >= 0) & (chosen < weight_b.shape[0])
    row = torch.where(known, chosen, torch.zeros_like(chosen))
    inner = wide(x)
    if weight_a is not None:
        inner = torch.bmm(wide(weight_a[row, layer_idx]), inner[:, :, None])[:, :, 0]
        inner = wide(inner.to(x.dtype))
    added = torch.bmm(wide(weight_b[row, layer_idx]), inner[:, :, None])[:, :, 0]
    added = added.to(self.dtype) * scale
    y = self.clone()
    y[:, y_offset : y_offset + columns] += added * known[:, None]
    return y


@npu_batch_gather_matmul.check
def _(self, x, weight_b, indices, weight_a, layer_idx, y_offset, y_slice_size):
    must.dtype("self", self, torch.float16)
    must.ndim("self", self, 2)
    rows, width = self.shape
    must.same_dtype("x", x, "self", self)
    must.shape("x", x, (rows, None))
    must.dtype("indices", indices, torch.int32)
    must.shape("indices", indices, (rows,))
    must.same_dtype("weight_b", weight_b, "self", self)
    must.ndim("weight_b", weight_b, 4)
    adapters, layers, columns, rank = weight_b.shape
    must.shape(
        "weight_b", weight_b, (None, None, None, None if weight_a is not None else x.shape[1])
    )
    must.same_dtype("weight_a", weight_a, "self", self)
    must.shape("weight_a", weight_a, (adapters, layers, rank, x.shape[1]))
    most = max(adapters, layers)
    must.hold(most <= 32, "weight_b", "of at most 32 adapters and 32 layers", (adapters, layers))
    for name, size in (("self", width), ("x", x.shape[1]), ("weight_b", columns)):
        expected = "of a size divisible by 16, up to 131072"
        must.hold(size % 16 == 0 and size <= 131072, name, expected, size)
    low = rank % 16 == 0 and (weight_a is None or rank <= 128)
    must.hold(low, "weight_b", "of a rank divisible by 16, with 'weight_a' up to 128", rank)
    size = width if y_slice_size == -1 else y_slice_size
    expected = f"-1 for {width}, or from 0 to {columns}, the columns of 'weight_b'"
    must.hold(0 <= size <= columns, "y_slice_size", expected, y_slice_size)
    must.hold(0 <= layer_idx < layers, "layer_idx", f"in [0, {layers - 1}]", layer_idx)
    inside = y_offset >= 0 and y_offset + columns <= width
    must.hold(inside, "y_offset", f"such that {columns} columns fit in {width}", y_offset)


npu_batch_gather_matmul.samples = [
    Sample(
        lambda make: (
            make(3, 16).half(),
            make(3, 32).half(),
            make(2, 2, 16, 16).half(),
            make(3, dtype=torch.int32, low=0, high=3),
            make(2, 2, 16, 32).half(),
            1,
            0.5,
        )
    ),
    Sample(
        lambda make: (
            make(3, 32).half(),
            make(3, 16).half(),
            make(2, 1, 16, 16).half(),
            make(3, dtype=torch.int32, low=0, high=2),
        ),
        {"y_offset": 16, "y_slice_size": 16},
    ),
]
