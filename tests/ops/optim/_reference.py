"""What the optimizer tests share: targets on the device, and their copies in fp64."""

import torch

from tests.ops.support import make


def targets(*shape, dtype=torch.float32, low=0.0):
    """grad, then var, m and v."""
    return (
        make(*shape, dtype=dtype, seed=11),
        make(*shape, dtype=dtype, seed=12),
        make(*shape, dtype=dtype, seed=13),
        make(*shape, dtype=dtype, low=low, seed=14),
    )


def exact(*tensors):
    return [t.detach().cpu().double().clone() for t in tensors]


def as_read(dtype, *scalars):
    """Scalars as the card reads them: tensors of this dtype."""
    return [None if x is None else torch.tensor(x, dtype=dtype).double().item() for x in scalars]
