"""What npu_mhc_pre and its backward share: the streams, the rows of the maps, rounding to HF32."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must

#: bits of the mantissa that HF32 drops of float32's
_DROPPED = 13


def check_streams(x, alpha):
    """n, D and the number of rows of phi."""
    must.dtype("x", x, torch.float16, torch.bfloat16)
    must.ndim("x", x, 3, 4)
    shape = tuple(x.shape)
    n, width = shape[-2:]
    must.hold(x.numel() > 0, "x", "not empty", shape)
    must.hold(n in (4, 6, 8), "x", "of 4, 6 or 8 streams", shape)
    must.hold(width % 16 == 0, "x", "of a last size divisible by 16", shape)
    must.dtype("alpha", alpha, torch.float32)
    must.ndim("alpha", alpha, 1)
    must.hold(alpha.numel() in (2, 3), "alpha", "of 2 or 3 numbers", tuple(alpha.shape))
    return n, width, 2 * n + (n * n if alpha.numel() == 3 else 0)


def repeated(alpha, n):
    """The factor of each row of phi."""
    counts = (n, n, n * n)[: alpha.numel()]
    return torch.cat([a.expand(count) for a, count in zip(alpha, counts, strict=True)])


def hf32(x):
    """Each float32 rounded to 10 bits of mantissa, ties away from zero, as Ascend950's cube unit takes it; other types
    as they are."""
    if x.dtype != torch.float32:
        return x
    bits = x.contiguous().view(torch.int32)
    rounded = (bits + (1 << (_DROPPED - 1))) & -(1 << _DROPPED)
    return torch.where(x.isfinite(), rounded.view(torch.float32), x)
