"""npu_nsa_compress and npu_nsa_compress_grad: windows of keys weighed and summed."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.nsa import _blocks

_MAX_HEADS, _WIDEST, _MAX_KEYS = 128, 256, 128


def _places(ends, size, stride, input):
    """(windows, size): the rows of each window."""
    firsts = _blocks.windows(ends, size, stride, input.shape[0])
    first = torch.tensor(firsts, dtype=torch.long, device=input.device)
    return first.unsqueeze(1) + torch.arange(size, device=input.device)


@npu_op(
    "npu_nsa_compress(Tensor input, Tensor weight, int compress_block_size, int compress_stride, *, "
    "int[]? actual_seq_len=None) -> Tensor",
    chips=("A2", "A3"),
)
def npu_nsa_compress(input, weight, compress_block_size, compress_stride, actual_seq_len):
    r"""Weighs and sums windows of keys, so that each becomes one compressed key.

    $$ y_i = \sum_{j=0}^{l-1} w_j \odot x_{i d + j} $$

    for every window of l keys, one every d keys, that lies within a sequence.

    Args:
        input: x, (T, N, D), float16 or bfloat16: the sequences one after the other; N up to 128, D a multiple of 16 up
            to 256.
        weight: w, (l, N), of the dtype of `input`.
        compress_block_size: l, a multiple of 16 up to 128.
        compress_stride: d, a multiple of 16 up to l.
        actual_seq_len: where each sequence ends; the last is T.

    Returns:
        y, (windows, N, D), of the dtype of `input`; sequences shorter than l have none.
    """
    rows = _places(actual_seq_len, compress_block_size, compress_stride, input)
    y = torch.einsum("ljnd,jn->lnd", wide(input)[rows], wide(weight))
    return y.to(input.dtype)


def _check(input, weight, compress_block_size, compress_stride, actual_seq_len):
    must.dtype("input", input, *_blocks.HALF)
    must.ndim("input", input, 3)
    must.hold(input.shape[1] <= _MAX_HEADS, "input", "of at most 128 heads", tuple(input.shape))
    _blocks.check_size("input", input.shape[2], _WIDEST, "of a head size that is ")
    _blocks.check_size("compress_block_size", compress_block_size, _MAX_KEYS)
    _blocks.check_size("compress_stride", compress_stride, compress_block_size)
    must.same_dtype("weight", weight, "input", input)
    must.shape("weight", weight, (compress_block_size, input.shape[1]))
    _blocks.check_ends("actual_seq_len", actual_seq_len, input.shape[0], "input")


npu_nsa_compress.check(_check)


@npu_nsa_compress.meta
def _(input, compress_block_size, compress_stride, actual_seq_len):
    lists = (actual_seq_len, compress_block_size, compress_stride)
    count = len(_blocks.windows(*lists, input.shape[0]))
    return input.new_empty((count, *input.shape[1:]))


@npu_nsa_compress.backward
def _(grad, *, input, weight, compress_block_size, compress_stride, actual_seq_len):
    found = torch.ops.npu.npu_nsa_compress_grad(
        grad, input, weight, compress_block_size, compress_stride, actual_seq_len=actual_seq_len
    )
    return {"input": found[0], "weight": found[1]}


@npu_op(
    "npu_nsa_compress_grad(Tensor grad, Tensor input, Tensor weight, int compress_block_size, "
    "int compress_stride, *, int[]? actual_seq_len=None) -> (Tensor, Tensor)",
    chips=("A2", "A3"),
)
def npu_nsa_compress_grad(
    grad, input, weight, compress_block_size, compress_stride, actual_seq_len
):
    r"""The gradients of `npu_nsa_compress`.

    $$ dx_t = \sum_{i d + j = t} w_j \odot dy_i, \qquad dw_j = \sum_i \sum_D dy_i \odot x_{i d + j} $$

    Args:
        grad: dy, (windows, N, D).
        input: x, (T, N, D).
        weight: w, (l, N).
        compress_block_size: l.
        compress_stride: d.
        actual_seq_len: where each sequence ends.

    Returns:
        dx and dw, of the shapes and dtypes of `input` and `weight`.
    """
    rows = _places(actual_seq_len, compress_block_size, compress_stride, input)
    dy = wide(grad)
    parts = torch.einsum("lnd,jn->ljnd", dy, wide(weight))
    dx = torch.zeros_like(input, dtype=dy.dtype).index_add(0, rows.flatten(), parts.flatten(0, 1))
    dw = torch.einsum("lnd,ljnd->jn", dy, wide(input)[rows])
    return dx.to(input.dtype), dw.to(weight.dtype)


@npu_nsa_compress_grad.check
def _(grad, input, weight, compress_block_size, compress_stride, actual_seq_len):
    _check(input, weight, compress_block_size, compress_stride, actual_seq_len)
    must.same_dtype("grad", grad, "input", input)
    lists = (actual_seq_len, compress_block_size, compress_stride)
    count = len(_blocks.windows(*lists, input.shape[0]))
    must.shape("grad", grad, (count, *input.shape[1:]))


@npu_nsa_compress_grad.meta
def _(input, weight):
    return torch.empty_like(input), torch.empty_like(weight)


npu_nsa_compress.samples = [
    Sample(
        lambda make: (make(70, 3, 16).half(), make(32, 3).half(), 32, 16),
        {"actual_seq_len": [5, 5, 70]},
    ),
    Sample(
        lambda make: (make(48, 1, 32).bfloat16(), make(16, 1).bfloat16(), 16, 16),
        {"actual_seq_len": [48]},
    ),
]
npu_nsa_compress_grad.samples = [
    Sample(
        lambda make: (make(3, 3, 16).half(), make(70, 3, 16).half(), make(32, 3).half(), 32, 16),
        {"actual_seq_len": [5, 5, 70]},
    )
]
