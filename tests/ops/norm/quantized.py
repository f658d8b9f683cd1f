"""References for norms that quantize: fp64 before rounding, and what a rounded result may be."""

from __future__ import annotations

import torch

from tests.ops.quant import plain


def norm(x, gamma, beta=None, epsilon=1e-6, dims=None):
    """x / rms(x) * gamma + beta and 1 / rms(x) in fp64 on the host."""
    x, gamma = x.detach().cpu().double(), gamma.detach().cpu().double()
    over = list(range(-(dims or gamma.dim()), 0))
    rstd = (x.pow(2).mean(over, keepdim=True) + epsilon).pow(-0.5)
    y = x * rstd * gamma
    return (y if beta is None else y + beta.cpu().double()), rstd


def affine(y, scale, offset, divide=True):
    scale = scale.cpu().double()
    y = y / scale if divide else y * scale
    return y if offset is None else y + offset.cpu().double()


def rounds_to(q, values, low=-128, high=127, slack=2e-3):
    """Each integer is the nearest one to its fp64 value, which may miss a tie by the fp32 arithmetic's error."""
    if q.dtype == torch.int32:
        q, low, high = plain.nibbles(q), -8, 7
    q, values = q.cpu().double().reshape(values.shape), values.clamp(low, high)
    off = (q - values).abs().max().item() if q.numel() else 0.0
    assert off <= 0.5 + slack, off
    assert ((q == values.round()) | ((q - values).abs() > 0.5 - slack)).all()


def float8_of(q, values, code):
    """Most 8-bit floats are the rounded fp64 values, the others neighbors of theirs."""
    dtype = {291: torch.float8_e5m2, 292: torch.float8_e4m3fn}[code]
    assert q.dtype == dtype
    top = torch.finfo(dtype).max
    want = values.clamp(-top, top).to(dtype).view(torch.uint8).int()
    got = q.cpu().view(torch.uint8).int()
    assert (got == want).float().mean() > 0.97 and (got - want).abs().max() <= 1
