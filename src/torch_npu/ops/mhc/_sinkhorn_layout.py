"""The order in which npu_mhc_sinkhorn hands its steps to its backward.

Upstream splits the tokens over the 64 vector cores of Ascend950, and those of a core into tiles that fit its buffer. A
tile of t tokens stores, one step after the other, its normalized matrices as (n, t, 8), and, one iteration after the
other, its row sums as (8, t) and its column sums as (t, 8). Columns past n are zero, row sums past n are one.
Sizes as in op-plugin's test of the backward and mhc_sinkhorn's tiling.
"""

from __future__ import annotations

import torch

#: floats of a data block, to which n is padded
ALIGNED = 8
_CORES = 64
_BUFFER = (248 * 1024 - 64 - 256 * 2) // 2
_TOKENS_AT_ONCE = 8


def _padded(count):
    return -(-count // ALIGNED) * ALIGNED


def _forward_bytes(t, n):
    parts = (t * n * n, t * n * n, n * t * ALIGNED, n * t * ALIGNED, t * ALIGNED, t * ALIGNED)
    return 4 * sum(map(_padded, parts))


def _backward_bytes(t, n):
    parts = (t * n * n, t * n * n, 2 * t * n * ALIGNED, 2 * t * ALIGNED)
    return 4 * sum(map(_padded, parts))


def tiles(tokens, n):
    """The (first, count) of each tile, in order."""
    share = -(-tokens // _CORES)
    forward = backward = share
    if _forward_bytes(share, n) > _BUFFER:
        forward = _BUFFER // _forward_bytes(1, n)
    if _backward_bytes(share, n) > _BUFFER:
        backward = _BUFFER // _backward_bytes(1, n)
        if backward >= _TOKENS_AT_ONCE:
            backward = backward // _TOKENS_AT_ONCE * _TOKENS_AT_ONCE
    size = min(forward, backward)
    for core in range(0, tokens, share):
        end = min(core + share, tokens)
        for first in range(core, end, size):
            yield first, min(size, end - first)


def pack_norms(norms):
    """Step after step of (T, n, n) in the order of the tiles."""
    n = norms[0].shape[-1]
    steps = torch.nn.functional.pad(torch.stack(norms), (0, ALIGNED - n))
    parts = [steps[:, a : a + t].transpose(1, 2).flatten() for a, t in tiles(steps.shape[1], n)]
    return torch.cat(parts)


def unpack_norms(flat, tokens, n):
    steps, out, at = flat.numel() // (tokens * n * ALIGNED), [], 0
    for _, t in tiles(tokens, n):
        size = steps * n * t * ALIGNED
        part = flat[at : at + size].view(steps, n, t, ALIGNED)
        out.append(part[..., :n].transpose(1, 2))
        at += size
    return torch.cat(out, 1)


def pack_sums(sums):
    """Row sums (T, n, 1) and column sums (T, 1, n), by turns, in the order of the tiles; the first is a placeholder."""
    n = sums[1].shape[-1]
    rows = torch.stack([s.expand(-1, n, 1).squeeze(-1) for s in sums[::2]])
    rows = torch.nn.functional.pad(rows, (0, ALIGNED - n), value=1.0)
    columns = torch.stack([s.squeeze(-2) for s in sums[1::2]])
    columns = torch.nn.functional.pad(columns, (0, ALIGNED - n))
    parts = []
    for a, t in tiles(rows.shape[1], n):
        row = rows[:, a : a + t].transpose(1, 2).flatten(1)
        parts.append(torch.cat((row, columns[:, a : a + t].flatten(1)), 1).flatten())
    return torch.cat(parts)


def unpack_sums(flat, tokens, n):
    """The sums of each step, shaped to divide (T, n, n)."""
    count, rows, columns, at = flat.numel() // (2 * tokens * ALIGNED), [], [], 0
    for _, t in tiles(tokens, n):
        size = 2 * count * t * ALIGNED
        part = flat[at : at + size].view(count, 2, t * ALIGNED)
        rows.append(part[:, 0].view(count, ALIGNED, t)[:, :n].transpose(1, 2))
        columns.append(part[:, 1].view(count, t, ALIGNED)[..., :n])
        at += size
    row, column = torch.cat(rows, 1)[..., None], torch.cat(columns, 1)[..., None, :]
    return [s for pair in zip(row, column, strict=True) for s in pair]
