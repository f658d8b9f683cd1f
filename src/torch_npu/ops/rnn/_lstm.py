"""The LSTM over time and its gradients, on plain tensors in fp32; gates in the order i, f, j, o.

$$ i, f, o = \\sigma(\\ldots), \\; j = \\tanh(\\ldots), \\;
   c_t = f \\odot c_{t-1} + i \\odot j, \\; h_t = o \\odot \\tanh(c_t) $$
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from torch_npu.ops._math import wide
from torch_npu.ops.rnn._sequence import before, blend, steps, stored, time_first


class Weights(NamedTuple):
    """What multiplies the input and the state: (I, 4H), (H, 4H) and, if there is one, (4H,)."""

    x: torch.Tensor
    h: torch.Tensor
    bias: torch.Tensor | None

    @staticmethod
    def of(weight: torch.Tensor, bias: torch.Tensor | None, features: int) -> Weights:
        """From one matrix (I + H, 4H)."""
        weight = wide(weight)
        return Weights(weight[:features], weight[features:], None if bias is None else wide(bias))


class Trace(NamedTuple):
    """Everything that a run leaves behind, each (T, B, H)."""

    y: torch.Tensor
    h: torch.Tensor
    c: torch.Tensor
    i: torch.Tensor
    j: torch.Tensor
    f: torch.Tensor
    o: torch.Tensor
    tanhc: torch.Tensor


def run(
    x: torch.Tensor,
    weights: Weights,
    h: torch.Tensor,
    c: torch.Tensor,
    mask: torch.Tensor | None,
    reverse: bool,
) -> Trace:
    """The layer over (T, B, I). Where the mask is 0 the state stays and y is 0."""
    gates_x = x @ weights.x
    if weights.bias is not None:
        gates_x = gates_x + weights.bias
    count, hidden = x.shape[0], weights.h.shape[0]
    shape = (count, x.shape[1], hidden)
    trace = Trace(*(gates_x.new_empty(shape) for _ in Trace._fields))
    for t in steps(count, reverse):
        i, f, j, o = (gates_x[t] + h @ weights.h).chunk(4, -1)
        i, f, j, o = i.sigmoid(), f.sigmoid(), j.tanh(), o.sigmoid()
        now = None if mask is None else mask[t]
        fresh = f * c + i * j
        tanhc = fresh.tanh()
        out = o * tanhc
        h, c = blend(now, out, h), blend(now, fresh, c)
        y = out if now is None else now * out
        for slot, value in zip(trace, (y, h, c, i, j, f, o, tanhc), strict=True):
            slot[t] = value
    return trace


class Gradients(NamedTuple):
    """Of the input, the two matrices, the bias and the initial states."""

    x: torch.Tensor
    weight_x: torch.Tensor
    weight_h: torch.Tensor
    bias: torch.Tensor
    h: torch.Tensor
    c: torch.Tensor


def back(
    grads: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    x: torch.Tensor,
    weights: Weights,
    h: torch.Tensor,
    c: torch.Tensor,
    trace: Trace,
    mask: torch.Tensor | None,
    reverse: bool,
) -> Gradients:
    """From the gradients of y, h and c at every step, backwards through time."""
    dy, dh, dc = grads
    h_before, c_before = before(trace.h, h, reverse), before(trace.c, c, reverse)
    next_h, next_c = torch.zeros_like(h), torch.zeros_like(c)
    d_gates: list[torch.Tensor] = [next_h] * x.shape[0]
    for t in steps(x.shape[0], not reverse):
        i, j, f, o, tanhc = trace.i[t], trace.j[t], trace.f[t], trace.o[t], trace.tanhc[t]
        now = None if mask is None else mask[t]
        d_h, d_c = dh[t] + next_h, dc[t] + next_c
        d_out, d_fresh = d_h + dy[t], d_c
        if now is not None:
            d_out, d_fresh = now * d_out, now * d_c
        d_fresh = d_fresh + d_out * o * (1 - tanhc * tanhc)
        d_gates[t] = torch.cat(
            [
                d_fresh * j * i * (1 - i),
                d_fresh * c_before[t] * f * (1 - f),
                d_fresh * i * (1 - j * j),
                d_out * tanhc * o * (1 - o),
            ],
            -1,
        )
        next_h, next_c = d_gates[t] @ weights.h.mT, d_fresh * f
        if now is not None:
            next_h, next_c = next_h + (1 - now) * d_h, next_c + (1 - now) * d_c
    stacked = torch.stack(d_gates) if d_gates else x.new_zeros((0, x.shape[1], weights.x.shape[1]))
    flat = stacked.flatten(0, 1)
    return Gradients(
        stacked @ weights.x.mT,
        x.flatten(0, 1).mT @ flat,
        h_before.flatten(0, 1).mT @ flat,
        flat.sum(0),
        next_h,
        next_c,
    )


def forward(input, weight, bias, h, c, mask, reverse, batch_first) -> tuple[torch.Tensor, ...]:
    """The operators' form: one matrix, any layout, results in the dtype of the input."""
    weights = Weights.of(weight, bias, input.shape[2])
    x, h, c = time_first(wide(input), batch_first), wide(h), wide(c)
    trace = run(x, weights, h.reshape(h.shape[-2:]), c.reshape(c.shape[-2:]), mask, reverse)
    return stored(trace, input.dtype, batch_first)


def shapes(input: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What `forward` returns, without its values."""
    size = (*input.shape[:2], bias.shape[0] // 4)
    return tuple(input.new_empty(size) for _ in Trace._fields)


def backward(
    grads, input, weight, bias, h, c, results, mask, reverse, batch_first
) -> tuple[torch.Tensor, ...]:
    """Gradients of `forward` (bias None: its gradient is zero), in the dtypes of the arguments."""
    features = input.shape[2]
    dy, dh, dc = (
        time_first(wide(torch.zeros_like(results[0]) if g is None else g), batch_first)
        for g in grads
    )
    trace = Trace(*(time_first(wide(r), batch_first) for r in results))
    found = back(
        (dy, dh, dc),
        time_first(wide(input), batch_first),
        Weights.of(weight, bias, features),
        wide(h).reshape(h.shape[-2:]),
        wide(c).reshape(c.shape[-2:]),
        trace,
        mask,
        reverse,
    )
    return (
        time_first(found.x, batch_first).to(input.dtype).contiguous(),
        torch.cat([found.weight_x, found.weight_h]).to(weight.dtype),
        found.bias,
        found.h.to(h.dtype).reshape(h.shape),
        found.c.to(c.dtype).reshape(c.shape),
    )
