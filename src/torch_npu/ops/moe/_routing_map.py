"""What the permutations by routing map share: which (expert, token) pairs a map names."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._shared._indices import first_bad

MAPS = (torch.bool, torch.int8)


def pairs_of(routing_map: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The experts and the tokens of the first `count` chosen pairs, expert by expert."""
    tokens = routing_map.size(0)
    chosen = routing_map.t().reshape(-1) != 0
    place = torch.argsort((~chosen).to(torch.uint8), stable=True)[:count]
    return place // max(tokens, 1), place % max(tokens, 1)


def experts_of_tokens(routing_map: torch.Tensor, top_k: int) -> torch.Tensor:
    """The experts of the first token, then of the second, ...; any others where they are fewer."""
    free = (routing_map == 0).to(torch.uint8)
    return torch.argsort(free, dim=1, stable=True)[:, :top_k].reshape(-1)


def slots_of(sorted_indices: torch.Tensor, experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """For padded rows, `capacity` for each expert: their experts and their tokens."""
    token = sorted_indices.long()
    capacity = max(token.numel() // max(experts, 1), 1)
    return torch.arange(token.numel(), device=token.device) // capacity, token


def check_map(routing_map: torch.Tensor, tokens: int, top_k: int | None) -> None:
    """The map's type and shape, and that each token has `top_k` experts (None: any number)."""
    must.dtype("routing_map", routing_map, *MAPS)
    must.ndim("routing_map", routing_map, 2)
    must.shape("routing_map", routing_map, (tokens, None))
    if top_k is not None and must.has_data(routing_map):
        each = (routing_map.cpu() != 0).sum(1)
        first_bad("routing_map", f"of {top_k} experts a token", each, each != top_k)


def check_probs(
    probs: torch.Tensor | None, routing_map: torch.Tensor, tokens: torch.Tensor
) -> None:
    """One weight for each pair, of the dtype of the tokens or float32 beside bfloat16."""
    wide = (torch.float32,) if tokens.dtype == torch.bfloat16 else ()
    must.dtype("probs", probs, tokens.dtype, *wide)
    must.shape("probs", probs, tuple(routing_map.shape))
