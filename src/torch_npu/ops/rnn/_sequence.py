"""What the recurrent operators share: layouts, masks of variable lengths, constraints."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must

FLOATS = (torch.float16, torch.float32)


def time_first(tensor: torch.Tensor, batch_first: bool) -> torch.Tensor:
    """(T, B, ...), from (B, T, ...) if `batch_first`; its own inverse."""
    return tensor.transpose(0, 1) if batch_first else tensor


def stored(
    tensors: Iterable[torch.Tensor], dtype: torch.dtype, batch_first: bool
) -> tuple[torch.Tensor, ...]:
    """Results in the operator's dtype and layout."""
    return tuple(time_first(t, batch_first).to(dtype).contiguous() for t in tensors)


def steps(count: int, reverse: bool) -> range:
    """The order in which a direction walks through time."""
    return range(count - 1, -1, -1) if reverse else range(count)


def before(states: torch.Tensor, first: torch.Tensor, reverse: bool) -> torch.Tensor:
    """The state that each step starts from: the states shifted by one step, `first` at the start."""
    first = first.unsqueeze(0)
    return torch.cat([states[1:], first] if reverse else [first, states[:-1]])


def blend(mask: torch.Tensor | None, new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """`new` where the mask is 1, `old` where it is 0."""
    return new if mask is None else mask * new + (1 - mask) * old


def mask_of_lengths(lengths: torch.Tensor, count: int, like: torch.Tensor) -> torch.Tensor:
    """(T, B, 1): 1 while a sequence lasts."""
    time = torch.arange(count, device=like.device)
    return (time[:, None] < lengths.to(like.device)[None, :]).to(like.dtype).unsqueeze(2)


def mask_of_batches(batch_sizes: torch.Tensor, batch: int, like: torch.Tensor) -> torch.Tensor:
    """(T, B, 1) from how many sequences are alive at each step, the longest first."""
    row = torch.arange(batch, device=like.device)
    return (row[None, :] < batch_sizes.to(like.device)[:, None]).to(like.dtype).unsqueeze(2)


def check_single_layer(num_layers: int, dropout: float, train: bool) -> None:
    """One call is one layer; dropout acts between layers."""
    must.hold(num_layers == 1, "num_layers", "1", num_layers, ErrCode.NOT_SUPPORT)
    must.hold(dropout == 0, "dropout", "0", dropout, ErrCode.NOT_SUPPORT)
    must.choice("train", train, (True, False))


def check_state(
    name: str, state: torch.Tensor, batch: int, hidden: int, like: torch.Tensor
) -> None:
    """(1, B, H) or (B, H)."""
    must.same_dtype(name, state, "input", like)
    must.ndim(name, state, 2, 3)
    must.shape(name, state, (batch, hidden) if state.dim() == 2 else (1, batch, hidden))


def check_lengths(name: str, lengths: torch.Tensor, count: int, batch: int) -> None:
    """(B,) lengths between 0 and the number of steps."""
    must.dtype(name, lengths, torch.int32, torch.int64)
    must.shape(name, lengths, (batch,))
    if must.has_data(lengths) and lengths.numel():
        low, high = lengths.min().item(), lengths.max().item()
        must.hold(low >= 0 and high <= count, name, f"from 0 to {count}", f"{low} to {high}")
