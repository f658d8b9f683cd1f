"""Words for tests of where operators round: casts between fp32 and half precision in numpy, and comparisons of bits."""

import numpy as np
import torch

HALF, BRAIN = torch.float16, torch.bfloat16
F = np.float32


def bits(tensor):
    return tensor.cpu().contiguous().view(torch.int16)


def same(found, values):
    """The tensor has exactly these fp32 values, cast to its dtype (to nearest, halves to even)."""
    want = torch.from_numpy(np.asarray(values, dtype=F)).to(found.dtype)
    assert torch.equal(bits(found), bits(want.reshape(found.shape)))


def single(tensor):
    return tensor.cpu().float().numpy()


def cast(values, dtype):
    """fp32 values rounded to a half type and back."""
    return torch.from_numpy(np.asarray(values, dtype=F)).to(dtype).float().numpy()


def integers(values):
    return np.clip(np.rint(values), -128, 127).astype(np.int8)
