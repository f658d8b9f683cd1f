"""The samples of PyTorch's operator database, without what its own iterator costs under pytest: for each operator it looks
through all frames of the stack, and their sources, for a test of unittest (a minute for the whole database)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.testing._internal.common_utils import set_rng_seed
from torch.testing._internal.opinfo.core import OpInfo, SampleInput


def samples(info: OpInfo, dtype: torch.dtype, requires_grad: bool = False) -> Iterator[SampleInput]:
    """What `info.sample_inputs` yields, with the same random numbers before each sample."""
    made: Iterator[Any] = iter(info.sample_inputs_func(info, "cpu", dtype, requires_grad))
    while True:
        set_rng_seed()
        try:
            yield next(made)
        except StopIteration:
            return
