"""The GRU over time and its gradients, on plain tensors in fp32; gates in the order r, z, n.

$$ r, z = \\sigma(\\ldots), \\; n = \\tanh(x W_n + b_n + r \\odot (h_{t-1} U_n + c_n)), \\;
   h_t = (1 - z) \\odot n + z \\odot h_{t-1} $$
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from torch_npu.ops.rnn._sequence import before, blend


class Weights(NamedTuple):
    """What multiplies the input and the state, (I, 3H) and (H, 3H), and their biases (3H,)."""

    x: torch.Tensor
    h: torch.Tensor
    bias_x: torch.Tensor | None
    bias_h: torch.Tensor | None


class Trace(NamedTuple):
    """Everything that a run leaves behind, each (T, B, H); `hidden_new` is what r scales."""

    y: torch.Tensor
    h: torch.Tensor
    update: torch.Tensor
    reset: torch.Tensor
    new: torch.Tensor
    hidden_new: torch.Tensor


def _plus(value: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return value if bias is None else value + bias


def run(x: torch.Tensor, weights: Weights, h: torch.Tensor, mask: torch.Tensor | None) -> Trace:
    """The layer over (T, B, I). Where the mask is 0 the state stays and y is 0."""
    gates_x = _plus(x @ weights.x, weights.bias_x)
    shape = (x.shape[0], x.shape[1], weights.h.shape[0])
    trace = Trace(*(gates_x.new_empty(shape) for _ in Trace._fields))
    for t in range(x.shape[0]):
        x_r, x_z, x_n = gates_x[t].chunk(3, -1)
        h_r, h_z, h_n = _plus(h @ weights.h, weights.bias_h).chunk(3, -1)
        reset, update = (x_r + h_r).sigmoid(), (x_z + h_z).sigmoid()
        new = (x_n + reset * h_n).tanh()
        out = (1 - update) * new + update * h
        now = None if mask is None else mask[t]
        h = blend(now, out, h)
        y = out if now is None else now * out
        for slot, value in zip(trace, (y, h, update, reset, new, h_n), strict=True):
            slot[t] = value
    return trace


class Gradients(NamedTuple):
    """In the order of upstream's operator."""

    weight_x: torch.Tensor
    weight_h: torch.Tensor
    x: torch.Tensor
    bias_x: torch.Tensor
    bias_h: torch.Tensor
    h: torch.Tensor


def back(
    dy: torch.Tensor,
    dh: torch.Tensor,
    x: torch.Tensor,
    weights: Weights,
    h: torch.Tensor,
    trace: Trace,
    mask: torch.Tensor | None,
) -> Gradients:
    """From the gradients of y and h at every step, backwards through time."""
    h_before = before(trace.h, h, False)
    following = torch.zeros_like(h)
    d_gates_x: list[torch.Tensor] = [following] * x.shape[0]
    d_gates_h: list[torch.Tensor] = [following] * x.shape[0]
    for t in reversed(range(x.shape[0])):
        update, reset, new, h_n = trace.update[t], trace.reset[t], trace.new[t], trace.hidden_new[t]
        now = None if mask is None else mask[t]
        d_h = dh[t] + following
        d_out = d_h + dy[t] if now is None else now * (d_h + dy[t])
        d_new = d_out * (1 - update) * (1 - new * new)
        d_update = d_out * (h_before[t] - new) * update * (1 - update)
        d_reset = d_new * h_n * reset * (1 - reset)
        d_gates_x[t] = torch.cat([d_reset, d_update, d_new], -1)
        d_gates_h[t] = torch.cat([d_reset, d_update, d_new * reset], -1)
        following = d_out * update + d_gates_h[t] @ weights.h.mT
        if now is not None:
            following = following + (1 - now) * d_h
    all_x, all_h = torch.stack(d_gates_x), torch.stack(d_gates_h)
    flat_x, flat_h = all_x.flatten(0, 1), all_h.flatten(0, 1)
    return Gradients(
        x.flatten(0, 1).mT @ flat_x,
        h_before.flatten(0, 1).mT @ flat_h,
        all_x @ weights.x.mT,
        flat_x.sum(0),
        flat_h.sum(0),
        following,
    )
