"""npu_masked_causal_conv1d and its backward: a depthwise causal convolution of 3 taps."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op

TAPS = 3
_MAX_BATCH = 32  # that the gradient takes


def _check_conv(input, weight, mask):
    must.dtype("input", input, torch.float16, torch.bfloat16)
    must.ndim("input", input, 3)
    shape = tuple(input.shape)
    must.hold(input.numel() > 0, "input", "not empty", shape)
    steps, batch, width = shape
    # The limits are those of the operator's tiling, not of the page; its lower limit of 384 is left out, as
    # upstream's own test runs with 128.
    must.hold(width <= 24576, "input", "of a last size of at most 24576", shape)
    must.hold(width % 64 == 0, "input", "of a last size divisible by 64", shape)
    must.hold(steps * batch <= 524288, "input", "of at most 524288 tokens (S * B)", shape)
    must.same_dtype("weight", weight, "input", input)
    must.shape("weight", weight, (TAPS, width))
    must.dtype("mask", mask, torch.bool)
    must.shape("mask", mask, (batch, steps))


def _shifted(x, by):
    """x moved by `by` steps of the first dimension towards its end (its start, if negative), with zeros."""
    rows = x.shape[0]
    if abs(by) >= rows:
        return torch.zeros_like(x)
    if by >= 0:
        return torch.nn.functional.pad(x[: rows - by], (0, 0, 0, 0, by, 0))
    return torch.nn.functional.pad(x[-by:], (0, 0, 0, 0, 0, -by))


def _masked(x, mask):
    return x if mask is None else x * mask.t()[:, :, None]


@npu_op("npu_masked_causal_conv1d(Tensor input, Tensor weight, *, Tensor? mask=None) -> Tensor")
def npu_masked_causal_conv1d(input, weight, mask):
    r"""A causal convolution of each channel along the sequence; masked positions give zeros.

    $$ y_{s,b,h} = m_{b,s} \sum_{k=0}^{2} w_{k,h}\, x_{s-2+k,\,b,\,h} $$

    where x before the sequence is zero.

    Args:
        input: x, (S, B, H); float16 or bfloat16.
        weight: w, (3, H), of the dtype of `input`.
        mask: m, (B, S) bool, True where the position counts; None for all.

    Returns:
        y, with the shape and dtype of `input`.

    Constraints:
        H at most 24576 and divisible by 64; S * B at most 524288.

    Differs from upstream: upstream has it on Ascend950 only, here every chip computes it.
    """
    x, w = wide(input), wide(weight)
    taps = (_shifted(x, TAPS - 1 - k) * w[k] for k in range(TAPS))
    return _masked(sum(taps), mask).to(input.dtype)


@npu_masked_causal_conv1d.check
def _(input, weight, mask):
    _check_conv(input, weight, mask)


@npu_masked_causal_conv1d.backward
def _(grad, *, input, weight, mask):
    dx, dw = npu_masked_causal_conv1d_backward(grad, input, weight, mask=mask)
    return {"input": dx, "weight": dw}


npu_masked_causal_conv1d.samples = [
    Sample(
        lambda make: (make(4, 2, 384, dtype=torch.float16), make(3, 384, dtype=torch.float16)),
        lambda make: {"mask": make(2, 4, dtype=torch.bool)},
    ),
    Sample(
        lambda make: (make(2, 1, 448, dtype=torch.bfloat16), make(3, 448, dtype=torch.bfloat16))
    ),
]


@npu_op(
    "npu_masked_causal_conv1d_backward(Tensor grad_output, Tensor input, Tensor weight, *,"
    " Tensor? mask=None) -> (Tensor, Tensor)"
)
def npu_masked_causal_conv1d_backward(grad_output, input, weight, mask):
    r"""Gradients of `npu_masked_causal_conv1d`.

    $$ dx_{s} = \sum_k w_k\, (m \, dy)_{s+2-k}, \quad dw_k = \sum_{s,b} (m\,dy)_{s,b}\, x_{s-2+k,\,b} $$

    Args:
        grad_output: dy, with the shape and dtype of `input`.
        input: x, the forward's input.
        weight: w, as in the forward.
        mask: m, as in the forward.

    Returns:
        dx and dw, with the shapes of `input` and `weight` and the dtype of `grad_output`.

    Constraints: at most 32 sequences.
    """
    dy, x, w = _masked(wide(grad_output), mask), wide(input), wide(weight)
    dx = sum(_shifted(dy, k + 1 - TAPS) * w[k] for k in range(TAPS))
    dw = torch.stack([(dy * _shifted(x, TAPS - 1 - k)).sum((0, 1)) for k in range(TAPS)])
    return dx.to(grad_output.dtype), dw.to(grad_output.dtype)


@npu_masked_causal_conv1d_backward.check
def _(grad_output, input, weight, mask):
    _check_conv(input, weight, mask)
    batch = input.shape[1]
    must.hold(batch <= _MAX_BATCH, "input", f"of at most {_MAX_BATCH} sequences", batch)
    must.same_dtype("grad_output", grad_output, "input", input)
    must.shape("grad_output", grad_output, tuple(input.shape))


npu_masked_causal_conv1d_backward.samples = [
    Sample(
        lambda make: (
            make(4, 2, 384, dtype=torch.float16),
            make(4, 2, 384, dtype=torch.float16),
            make(3, 384, dtype=torch.float16),
        ),
        lambda make: {"mask": make(2, 4, dtype=torch.bool)},
    ),
]
