"""Training attention written out once more for the tests: dense, fp64, one sequence at a time, gradients by autograd."""

from __future__ import annotations

import math

import torch

LAYOUTS = ("BSH", "SBH", "BSND", "BNSD")
TRIANGLE = torch.ones(2048, 2048, dtype=torch.bool).triu(1)
PREFIX_MASK = torch.cat([TRIANGLE, torch.arange(2048).ge(1024).expand(1024, 2048)])


def to_layout(x: torch.Tensor, layout: str) -> torch.Tensor:
    """(B, N, S, D) in another layout."""
    if layout == "BNSD":
        return x
    rows = x.permute(0, 2, 1, 3)
    if layout == "BSND":
        return rows.contiguous()
    return (
        rows.flatten(2).contiguous()
        if layout == "BSH"
        else rows.flatten(2).transpose(0, 1).contiguous()
    )


def hidden(mode, sq, skv, pre=0, after=0, prefix=0, first=False, last=False) -> torch.Tensor:
    """The mask of a mode, True where hidden, as the page's drawings have it."""
    i, j = torch.arange(sq)[:, None], torch.arange(skv)
    from_upper_left, from_lower_right = j - i, (j - skv) - (i - sq)
    if mode == 0:
        return (from_upper_left < -pre) | (from_upper_left > after)
    if mode == 1:
        return torch.zeros(sq, skv, dtype=torch.bool)
    if mode == 4 or (mode == 7 and last) or (mode == 8 and first):
        return (from_lower_right < -pre) | (from_lower_right > after)
    if mode in (2, 8):
        return from_upper_left > 0
    if mode in (3, 7):
        return from_lower_right > 0
    return (from_lower_right > 0) & (j >= prefix)


def attend(q, k, v, scale, mask=None, bias=None, sink=None, keep=None, keep_prob=1.0):
    """One sequence, (N, S, D): output, row maxima and row sums; in the dtype of q."""
    group = q.shape[0] // k.shape[0]
    k, v = (x.repeat_interleave(group, 0) for x in (k, v))
    scores = q @ k.transpose(1, 2) * scale
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = scores.masked_fill(mask, -math.inf)
    if sink is not None:
        scores = torch.cat([scores, sink.view(-1, 1, 1).expand(-1, q.shape[1], 1)], -1)
    dead = (scores == -math.inf).all(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(dead, 0), -1).masked_fill(dead, 0)
    peak = scores.detach().double().amax(-1, keepdim=True)
    total = (scores.detach().double() - peak).exp().sum(-1, keepdim=True)
    if sink is not None:
        weights = weights[..., :-1]
    if keep is not None:
        weights = weights * keep.to(weights.dtype) / keep_prob
    limit = torch.finfo(torch.float32).max
    return (
        weights @ v,
        peak.masked_fill(dead, -limit).squeeze(-1),
        total.masked_fill(dead, limit).squeeze(-1),
    )


def philox_words(seed: int, offset: int, count: int) -> list[int]:
    """`count` words of Philox4x32-10 in plain integers: key seed, counter (block, offset)."""
    words, low = [], 2**32 - 1
    for block in range((count + 3) // 4):
        x = [block & low, block >> 32, offset & low, offset >> 32]
        key = [seed & low, seed >> 32]
        for _ in range(10):
            a, b = 0xD2511F53 * x[0], 0xCD9E8D57 * x[2]
            x = [(b >> 32) ^ x[1] ^ key[0], b & low, (a >> 32) ^ x[3] ^ key[1], a & low]
            key = [(key[0] + 0x9E3779B9) & low, (key[1] + 0xBB67AE85) & low]
        words += x
    return words[:count]


def kept(seed: int, offset: int, keep_prob: float, *shape: int) -> torch.Tensor:
    """What dropout keeps, 1.0 or 0.0."""
    words = torch.tensor(philox_words(seed, offset, math.prod(shape)))
    return (words < keep_prob * 2**32).double().view(shape)


def packed(keep: torch.Tensor) -> torch.Tensor:
    """A 0/1 tensor as dropout's bit mask."""
    flat = keep.flatten().int()
    flat = torch.nn.functional.pad(flat, (0, -flat.numel() % 128)).view(-1, 8)
    return (flat << torch.arange(8)).sum(1).to(torch.uint8)
