"""Tensors that are no plain ones: of ranks that nobody has, sparse, nested, quantized, fake, with bits of PyTorch's own."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses import FakeTensor, FakeTensorMode


class Subclass(torch.Tensor):
    """As a program may write one."""


def _deep(rank: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x.reshape([1] * max(rank - x.dim(), 0) + list(x.shape))


def _fake(x: torch.Tensor) -> torch.Tensor:
    return FakeTensorMode().from_tensor(x)


def without_frames(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A call, inside of modes. What the frames of its error hold goes before the modes end: PyTorch's printing of a tensor
    keeps a guard in a variable, which would bring them back later."""
    try:
        return function(*args, **kwargs)
    except BaseException as wrong:
        chained: BaseException | None = wrong
        while chained is not None:
            traceback.clear_frames(chained.__traceback__)
            chained = chained.__context__
        raise


def _inference(x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return without_frames(x.clone)


KINDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "scalar": lambda x: x.flatten()[0] if x.numel() else x.new_zeros(()),
    "rank 25": _deep(25),
    "rank 65": _deep(65),  # more than PyTorch's iterators know
    "sparse": lambda x: x.to_sparse(),
    "sparse rows": lambda x: x.to_sparse_csr(),
    "nested": lambda x: torch.nested.nested_tensor([x, x]),
    "jagged": lambda x: torch.nested.nested_tensor([x, x], layout=torch.jagged),
    "quantized": lambda x: torch.quantize_per_tensor(x.float(), 0.1, 0, torch.qint8),
    "conjugated": lambda x: x.to(torch.complex64).conj(),
    "negated": torch._neg_view,
    "fake": _fake,
    "inference": _inference,
    "subclass": lambda x: x.as_subclass(Subclass),
    "leaf": lambda x: x.clone().requires_grad_(),
}


def plain(x: torch.Tensor) -> bool:
    """Whether it has bytes of its own to look at."""
    odd = x.is_nested or x.is_quantized or isinstance(x, FakeTensor)
    return x.layout == torch.strided and not odd and x.device.type != "meta"
