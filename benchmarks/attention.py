"""Attention: what masked blocks save, and the memory of a long sequence."""

from __future__ import annotations

from collections.abc import Iterator

import torch

import torch_npu
from benchmarks.harness import Case, Goal

#: a causal mask leaves half of the blocks: at least 1.6 times faster than attention to everything
CAUSAL = Goal(1 / 1.6)

#: S = 16384 of 8 heads: no matrix of scores, forward and backward, over inputs and outputs
LONG, HEADS, SIZE, LIMIT = 16384, 8, 64, 300 * 2**20


def cases() -> Iterator[Case]:
    yield causal()
    yield long_sequence()


def _layers(length: int, dtype: torch.dtype) -> list[torch.Tensor]:
    return [torch.randn(1, HEADS, length, SIZE, dtype=dtype, device="npu") for _ in range(3)]


def causal() -> Case:
    """npu_fusion_attention with sparse_mode 2 at S = 4096, against the same without a mask."""
    q, k, v = _layers(4096, torch.float16)
    mask = torch.ones(2048, 2048, dtype=torch.bool, device="npu").triu(1)

    def masked() -> torch.Tensor:
        return torch_npu.npu_fusion_attention(
            q, k, v, HEADS, "BNSD", scale=SIZE**-0.5, atten_mask=mask, sparse_mode=2
        )[0]

    def full() -> torch.Tensor:
        return torch_npu.npu_fusion_attention(q, k, v, HEADS, "BNSD", scale=SIZE**-0.5)[0]

    def check() -> None:
        expected = torch.nn.functional.scaled_dot_product_attention(
            *(t.cpu().float()[:, :1, :512] for t in (q, k, v)), is_causal=True
        )
        torch.testing.assert_close(masked()[:, :1, :512].cpu().float(), expected, atol=2e-3, rtol=0)

    return Case(
        "npu_fusion_attention", "causal, S=4096", masked, full, CAUSAL, check, "npu, no mask"
    )


def peak_of_long_sequence() -> int:
    """Bytes above inputs, outputs and gradients at S = 16384 in float16, forward and backward."""
    q, k, v = (t.requires_grad_() for t in _layers(LONG, torch.float16))
    start = torch.npu.memory_allocated()
    torch.npu.reset_peak_memory_stats()
    results = torch_npu.npu_fusion_attention(q, k, v, HEADS, "BNSD", scale=SIZE**-0.5)
    dy = torch.ones_like(results[0])
    torch.autograd.backward(results[0], dy)
    peak = torch.npu.max_memory_allocated() - start
    grads = (q.grad, k.grad, v.grad)
    kept = [t for t in (*results, dy, *grads) if isinstance(t, torch.Tensor)]
    return peak - sum(t.untyped_storage().nbytes() for t in kept)


def long_sequence() -> Case:
    """The forward of a tenth of the sequence is timed; what counts is that the check holds the limit."""
    q, k, v = _layers(LONG // 16, torch.float16)

    def body() -> torch.Tensor:
        return torch_npu.npu_fusion_attention(q, k, v, HEADS, "BNSD", scale=SIZE**-0.5)[0]

    def plain() -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    def check() -> None:
        peak = peak_of_long_sequence()
        assert peak < LIMIT, f"{peak / 2**20:.0f} MiB above inputs and outputs at S={LONG}"

    return Case("npu_fusion_attention", f"memory at S={LONG}", body, plain, None, check, "npu sdpa")
