"""Mixture-of-experts routing and sampling at 4M elements, beside their formulas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

import torch_npu
from benchmarks import formulas
from benchmarks.harness import Case
from benchmarks.kernels import matrix
from benchmarks.side_by_side import Kernel

TOKENS, CHOSEN, EXPERTS = 1024, 2, 64  # 1024 x 2 rows of 2048 elements
npu = torch_npu


def gates(dtype: torch.dtype) -> tuple[Any, ...]:
    # distinct values, so that nobody has to choose between equals
    return (torch.randperm(16384 * 256).view(16384, 256).float().div(2**19).to(dtype),)


def biased_gates(dtype: torch.dtype) -> tuple[Any, ...]:
    return *gates(dtype), torch.zeros(256).to(dtype)


def tokens(dtype: torch.dtype) -> tuple[Any, ...]:
    experts = torch.rand(TOKENS, EXPERTS).topk(CHOSEN, -1)[1]
    return matrix(dtype, TOKENS), experts.to(torch.int32)


def routed(dtype: torch.dtype) -> tuple[Any, ...]:
    places = torch.randperm(TOKENS * CHOSEN, dtype=torch.int32)
    return matrix(dtype, TOKENS * CHOSEN), places, torch.rand(TOKENS, CHOSEN).to(dtype)


def vocabulary(dtype: torch.dtype) -> tuple[Any, ...]:
    p, k = torch.full((32,), 0.9).to(dtype), torch.full((32,), 50, dtype=torch.int32)
    return (3 * matrix(dtype, 32, 131072)), p, k


def init_routing(x: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    return npu.npu_moe_init_routing_v2(x, experts, expert_num=EXPERTS)[0]


def finalize_routing(rows: torch.Tensor, places: torch.Tensor, weights: torch.Tensor) -> Any:
    none = (None, None, None)
    return npu.npu_moe_finalize_routing(rows, *none, weights, places, None, drop_pad_mode=2)


KERNELS = [
    Kernel("npu_moe_gating_top_k_softmax", gates,
           lambda x: npu.npu_moe_gating_top_k_softmax(x, k=8)[0], formulas.softmax_gating,
           bound=False),
    Kernel("npu_moe_gating_top_k", biased_gates,
           lambda x, b: npu.npu_moe_gating_top_k(x, 8, bias=b, norm_type=1)[0],
           formulas.sigmoid_gating, bound=False),
    Kernel("npu_moe_init_routing_v2", tokens, init_routing, formulas.permute),
    Kernel("npu_moe_token_permute", tokens, lambda x, e: npu.npu_moe_token_permute(x, e)[0],
           formulas.permute),
    Kernel("npu_moe_token_unpermute", routed, npu.npu_moe_token_unpermute, formulas.unpermute),
    Kernel("npu_moe_finalize_routing", routed, finalize_routing, formulas.unpermute),
    Kernel("npu_top_k_top_p", vocabulary, npu.npu_top_k_top_p, formulas.top_k_top_p, bound=False),
]  # fmt: skip


def cases() -> Iterator[Case]:
    for kernel in KERNELS:
        yield from kernel.cases("routing and sampling")
