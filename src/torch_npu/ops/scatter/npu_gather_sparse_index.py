"""npu_gather_sparse_index and its backward: rows taken by index."""

from __future__ import annotations

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _indices

_DTYPES = (
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.float64,
    torch.complex64,
    torch.complex128,
)


@npu_op("npu_gather_sparse_index(Tensor input, Tensor index) -> Tensor")
def npu_gather_sparse_index(input, index):
    r"""Takes the slices of the first dimension at the given indices.

    $$ out[i_1, \ldots, i_k, j, \ldots] = input[index[i_1, \ldots, i_k], j, \ldots] $$

    Args:
        input: any of the integer, bool, floating or complex dtypes except uint16 to uint64 and the 8-bit floats.
        index: int32 or int64, at most 7 dimensions, values in [0, input.shape[0]); no negative ones.

    Returns:
        The dtype of `input`, the shape `index.shape + input.shape[1:]`; a scalar `input` comes back as it is.

    Constraints:
        The result has at most 8 dimensions.

    Differs from upstream: an index out of range raises.
    """
    if input.dim() == 0:
        return input.clone()
    taken = input.index_select(0, index.reshape(-1))
    return taken.reshape((*index.shape, *input.shape[1:]))


@npu_gather_sparse_index.check
def _(input, index):
    must.dtype("input", input, *_DTYPES)
    must.dtype("index", index, torch.int32, torch.int64)
    must.ndim("index", index, 0, 7)
    rank = input.dim() + index.dim() - 1
    expected = "of so few dimensions that input.dim() + index.dim() - 1 is at most 8"
    must.hold(rank <= 8, "index", expected, tuple(index.shape), ErrCode.PARAM)
    if input.dim():
        _indices.inside("index", index, input.shape[0])


@npu_gather_sparse_index.backward
def _(grad, *, input, index):
    if input.dim() == 0:
        return {"input": grad}
    sizes = input.shape
    dx = torch.ops.npu.npu_gather_sparse_index_backward(grad, sizes, index)
    return {"input": dx}


npu_gather_sparse_index.samples = [
    Sample(lambda make: (make(16, 8), make(2, 3, dtype=torch.int64, low=0, high=16))),
    Sample(lambda make: (make(5, dtype=torch.bfloat16), make(4, dtype=torch.int32, low=0, high=5))),
    Sample(
        lambda make: (
            make(3, 2, 2, dtype=torch.int8, low=-9, high=9),
            make(2, dtype=torch.int64, low=0, high=3),
        )
    ),
]


@npu_op(
    "npu_gather_sparse_index_backward(Tensor grad, SymInt[] self_sizes, Tensor index) -> Tensor",
)
def npu_gather_sparse_index_backward(grad, self_sizes, index):
    """The gradient of `npu_gather_sparse_index`: rows of `grad` added up at their indices, in fp32 at least.

    Args:
        grad: the gradient of the result, of shape `index.shape + self_sizes[1:]`.
        self_sizes: the shape of the forward's input.
        index: the forward's indices.
    """
    rows = grad.reshape(-1, *self_sizes[1:])
    rows = wide(rows) if rows.is_floating_point() else rows
    total = rows.new_zeros(tuple(self_sizes))
    return total.index_add_(0, index.reshape(-1), rows).to(grad.dtype)


@npu_gather_sparse_index_backward.check
def _(grad, self_sizes, index):
    must.hold(len(self_sizes) > 0, "self_sizes", "of at least one size", list(self_sizes))
    must.dtype("index", index, torch.int32, torch.int64)
    must.shape("grad", grad, (*index.shape, *self_sizes[1:]))
    _indices.inside("index", index, self_sizes[0])


npu_gather_sparse_index_backward.samples = [
    Sample(lambda make: (make(2, 3, 4), [8, 4], make(2, 3, dtype=torch.int64, low=0, high=8)))
]
