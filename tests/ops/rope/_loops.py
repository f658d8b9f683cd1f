"""Rotary embedding one pair at a time in Python's double precision, for the tests of this folder."""

import torch


def pairs(size, mode):
    """(i, j, i', j'): elements i and j of the input become i' and j' of the result."""
    half, quarter = size // 2, size // 4
    if mode == "half":
        return [(i, i + half, i, i + half) for i in range(half)]
    if mode == "interleave":
        return [(2 * i, 2 * i + 1, 2 * i, 2 * i + 1) for i in range(half)]
    if mode == "quarter":
        starts = [*range(quarter), *range(half, half + quarter)]
        return [(i, i + quarter, i, i + quarter) for i in starts]
    return [(2 * i, 2 * i + 1, i, i + half) for i in range(half)]


def rotate(x, cos, sin, mode):
    """x, cos and sin on the CPU in any dtype; the arithmetic happens in it."""
    cos, sin = cos.expand(x.shape), sin.expand(x.shape)
    y = torch.empty_like(x)
    for i, j, to_i, to_j in pairs(x.shape[-1], mode):
        a, b = x[..., i], x[..., j]
        y[..., to_i] = a * cos[..., to_i] - b * sin[..., to_i]
        y[..., to_j] = b * cos[..., to_j] + a * sin[..., to_j]
    return y
