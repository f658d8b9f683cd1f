"""The short convolution before linear attention, over cached tokens."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops.linear_attention._conv1d import convolve, values

__all__ = ["check_convolution", "convolution"]

PROMPT, UPDATE = 0, 1
_FLOATS = (torch.float16, torch.bfloat16, torch.float32)


def convolution(
    y, x, weight, states, bias, starts, lines, initial, accepted, activation, pad, mode
):
    """Each sequence goes on from the first width - 1 tokens of its line, which then holds its last ones.

    A prompt starts from zeros unless `initial` says otherwise. With `accepted` and 4 taps, a step of decoding starts
    from the tokens that end at the last accepted one, and the line keeps two of them and all new ones.
    """
    before = weight.shape[0] - 1
    flat, out = x.reshape(-1, x.shape[-1]), y.view(-1, x.shape[-1])
    bounds = _bounds(x, values(starts))
    lines, initial, accepted = values(lines), values(initial), values(accepted)
    accepted = accepted if mode == UPDATE and before == 3 else None
    room = states.shape[1]
    for sequence, (start, end) in enumerate(zip(bounds[:-1], bounds[1:], strict=True)):
        line = sequence if lines is None else lines[sequence]
        if line == pad or end <= start:
            continue
        fresh = mode == PROMPT and not (initial is not None and initial[sequence])
        offset = 0
        if accepted is not None:
            offset = min(max(accepted[sequence] - 1, 0), room - before)
        past = states[line, offset : offset + before].clone()
        past = torch.zeros_like(past) if fresh else past
        part = flat[start:end]
        padded = torch.cat((past, part))
        result = convolve(padded, weight)
        result = result if bias is None else result + wide(bias)
        result = torch.nn.functional.silu(result) if activation else result
        kept = padded[-before:]
        if accepted is not None and before - 1 + part.shape[0] <= room:
            kept = padded[1:]
        states[line, : kept.shape[0]] = kept
        out[start:end] = result.to(y.dtype)


def _bounds(x, starts):
    if starts is not None:
        return starts
    length = x.shape[1] if x.dim() == 3 else 1
    return list(range(0, x.shape[:-1].numel() + 1, length))


def check_convolution(x, weight, states, bias, indices, modes):
    starts, lines, initial, accepted = indices
    must.dtype("x", x, *_FLOATS)
    must.ndim("x", x, 2, 3)
    dim = x.shape[-1]
    must.same_dtype("weight", weight, "x", x)
    must.ndim("weight", weight, 2)
    width = weight.shape[0]
    must.hold(2 <= width <= 4, "weight", "of 2 to 4 taps", tuple(weight.shape))
    must.shape("weight", weight, (width, dim))
    name, states = states
    must.same_dtype(name, states, "x", x)
    must.shape(name, states, (None, None, dim))
    least = width - 1
    must.hold(states.shape[1] >= least, name, f"of at least {least} tokens a line", states.shape)
    must.same_dtype(bias[0], bias[1], "x", x)
    must.shape(bias[0], bias[1], (dim,))
    activation, run_mode = modes
    must.choice("activation_mode", activation, (0, 1))
    must.choice("run_mode", run_mode, (PROMPT, UPDATE))
    for name, tensor in (starts, lines, accepted):
        must.dtype(name, tensor, torch.int32, torch.int64)
        must.ndim(name, tensor, 1)
    must.dtype(initial[0], initial[1], torch.bool, torch.int32, torch.int64)
    if run_mode == PROMPT and x.dim() == 2:
        must.present(starts[0], starts[1], "for a prompt of 2 dimensions")
    batch = len(_bounds(x, None)) - 1 if starts[1] is None else starts[1].shape[0] - 1
    for name, tensor in (lines, initial, accepted):
        fits = tensor is None or tensor.shape[0] >= batch
        must.hold(fits, name, f"of at least {batch} elements", tensor)
