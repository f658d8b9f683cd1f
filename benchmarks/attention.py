"""Attention: training and inference operators beside the CPU's, what masked blocks save, and memory.

The CPU device's bf16 attention is so slow here that one head of all is measured, times their number.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

import torch_npu
from benchmarks import limits
from benchmarks.harness import Case, Goal, Versus

GROUP = "attention"
SDPA, INDUCTOR, HALF = Goal(1.0), Goal(1.0), Goal(1.3)
#: a causal mask leaves half of the blocks: at least 1.6 times faster than attention to everything
CAUSAL = Goal(1 / 1.6)
#: twice the tokens, twice the memory: a matrix of scores would need four times
LINEAR = Goal(2.1)
CACHE = Goal(2.0)

BATCH, HEADS, TOKENS, SIZE = 2, 8, 1024, 64
SCALE = SIZE**-0.5
#: no matrix of scores (1 GiB here) at S = 16384, forward and backward, over inputs and outputs of two heads
LONG, LIMIT = 16384, 75 * 2**20


def cases() -> Iterator[Case]:
    for backward in (False, True):
        for dtype in (torch.float32, torch.bfloat16):
            yield fusion(dtype, backward)
    yield causal()
    yield prompt()
    for paged in (False, True):
        yield decode(paged)
    yield linear()
    yield long_sequence()


def _layers(length: int, dtype: torch.dtype, heads: int = HEADS) -> list[torch.Tensor]:
    return [torch.randn(1, heads, length, SIZE, dtype=dtype, device="npu") for _ in range(3)]


def ours(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch_npu.npu_fusion_attention(q, k, v, q.shape[1], "BNSD", scale=SCALE)[0]


def _step(attend: Callable[..., Any], inputs: list[torch.Tensor], backward: bool) -> Any:
    if not backward:
        return attend(*inputs)
    given = [t.detach().requires_grad_() for t in inputs]
    y = attend(*given)
    return torch.autograd.grad(y, given, y.detach())


def fusion(dtype: torch.dtype, backward: bool) -> Case:
    """npu_fusion_attention beside `F.scaled_dot_product_attention` on the CPU device."""

    @functools.cache
    def inputs(device: str, as_dtype: torch.dtype, heads: int = HEADS) -> list[torch.Tensor]:
        made = [torch.randn(BATCH, HEADS, TOKENS, SIZE) for _ in range(3)]
        return [t[: 1 if heads == 1 else BATCH, :heads].to(device, as_dtype) for t in made]

    def run(attend: Callable[..., Any], *which: Any) -> Callable[[], Any]:
        return lambda: _step(attend, inputs(*which), backward)

    def check() -> None:
        same = [t.cpu().float() for t in inputs("npu", dtype)]
        want, got = _step(sdpa, same, backward), _step(ours, inputs("npu", dtype), backward)
        for w, g in zip(*(x if backward else (x,) for x in (want, got)), strict=True):
            torch.testing.assert_close(g.cpu().float(), w, atol=2e-2, rtol=2e-2)

    flops = 4 * BATCH * HEADS * TOKENS**2 * SIZE * (3.5 if backward else 1)
    others = {"limit": limits.blas(flops)}
    if dtype == torch.float32:
        baseline = Versus(run(sdpa, "cpu", dtype), SDPA)
    else:
        baseline = Versus(run(sdpa, "cpu", dtype, 1), times=BATCH * HEADS, label="bf16")
        others["npu fp32"] = Versus(run(ours, "npu", torch.float32), HALF)
    what = "forward and backward" if backward else "forward"
    name = f"npu_fusion_attention, {str(dtype).removeprefix('torch.')}, {what}"
    return Case(GROUP, name, run(ours, "npu", dtype), baseline, None, check, others=others)


def causal() -> Case:
    """npu_fusion_attention with sparse_mode 2 at S = 4096, against the same without a mask."""

    @functools.cache
    def inputs() -> tuple[list[torch.Tensor], torch.Tensor]:
        mask = torch.ones(2048, 2048, dtype=torch.bool, device="npu").triu(1)
        return _layers(4096, torch.float16), mask

    def masked() -> torch.Tensor:
        (q, k, v), mask = inputs()
        return torch_npu.npu_fusion_attention(
            q, k, v, HEADS, "BNSD", scale=SCALE, atten_mask=mask, sparse_mode=2
        )[0]

    def check() -> None:
        first = [t.cpu().float()[:, :1, :512] for t in inputs()[0]]
        expected = sdpa(*first, is_causal=True)
        torch.testing.assert_close(masked()[:, :1, :512].cpu().float(), expected, atol=2e-3, rtol=0)

    name = "npu_fusion_attention, causal, S=4096"
    full = lambda: ours(*inputs()[0])  # noqa: E731
    return Case(GROUP, name, masked, full, CAUSAL, check, "npu, no mask")


def prompt() -> Case:
    """npu_prompt_flash_attention with grouped heads in bf16, beside fp32 on the CPU device."""

    @functools.cache
    def inputs() -> list[torch.Tensor]:
        return [torch.randn(BATCH, n, TOKENS, SIZE).bfloat16().npu() for n in (HEADS, 2, 2)]

    wide = functools.cache(lambda: [t.cpu().float() for t in inputs()])

    def run() -> torch.Tensor:
        return torch_npu.npu_prompt_flash_attention(
            *inputs(), num_heads=HEADS, num_key_value_heads=2, scale_value=SCALE,
            input_layout="BNSD", next_tokens=2147483647,
        )  # fmt: skip

    def plain() -> torch.Tensor:
        return sdpa(*wide(), enable_gqa=True)

    def check() -> None:
        torch.testing.assert_close(run().cpu().float(), plain(), atol=2e-2, rtol=2e-2)

    others = {"limit": limits.blas(4 * BATCH * HEADS * TOKENS**2 * SIZE)}
    name = "npu_prompt_flash_attention, bfloat16, 8 heads on 2"
    return Case(GROUP, name, run, plain, HALF, check, "cpu fp32", others)


def decode(paged: bool) -> Case:
    """One token of 4 sequences over caches of 4096 tokens in bf16, 32 heads on 8: the caches are read once."""
    batch, heads, kept, length, size, block = 4, 32, 8, 4096, 128, 128

    @functools.cache
    def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        caches = [torch.randn(batch, length, kept * size).bfloat16().npu() for _ in range(2)]
        return torch.randn(batch, 1, heads * size).bfloat16().npu(), *caches

    @functools.cache
    def table() -> torch.Tensor:
        return torch.arange(batch * length // block, dtype=torch.int32).view(batch, -1).npu()

    def run() -> torch.Tensor:
        query, keys, values = inputs()
        options: dict[str, Any] = {"num_heads": heads, "num_key_value_heads": kept}
        if not paged:
            scale = size**-0.5
            return torch_npu.npu_incre_flash_attention(*inputs(), scale_value=scale, **options)
        pages = [t.view(-1, block, kept * size) for t in (keys, values)]
        return torch_npu.npu_fused_infer_attention_score(
            query, *pages, scale=size**-0.5, block_table=table(), block_size=block,
            actual_seq_lengths_kv=[length] * batch, **options,
        )[0]  # fmt: skip

    @functools.cache
    def wide() -> list[torch.Tensor]:
        shape = ((heads, 1), (kept, length), (kept, length))
        host = [t.cpu().float() for t in inputs()]
        return [
            t.view(batch, s, n, size).transpose(1, 2).contiguous()
            for t, (n, s) in zip(host, shape, strict=True)
        ]

    def plain() -> torch.Tensor:
        return sdpa(*wide(), enable_gqa=True)

    def check() -> None:
        want = plain().transpose(1, 2).reshape(batch, 1, -1)
        torch.testing.assert_close(run().cpu().float(), want, atol=2e-2, rtol=2e-2)
        if paged:
            found = compiled()(*on_host()).float()
            torch.testing.assert_close(found, want, atol=2e-2, rtol=2e-2)

    def attend_pages(query, keys, values, pages) -> torch.Tensor:
        """What torch.compile makes of it on the CPU device: pages are read where they lie."""
        rows = query.view(batch, kept, heads // kept, size).float()
        k, v = (t[pages].view(batch, length, kept, size).transpose(1, 2) for t in (keys, values))
        weights = (rows @ k.float().mT * size**-0.5).softmax(-1)
        return (weights @ v.float()).view(batch, 1, -1).to(query.dtype)

    @functools.cache
    def on_host() -> tuple[torch.Tensor, ...]:
        query, *caches = (t.cpu() for t in inputs())
        return query, *(t.view(-1, block, kept * size) for t in caches), table().cpu().long()

    compiled = functools.cache(lambda: torch.compile(attend_pages, dynamic=False))
    read = limits.reading(lambda: inputs()[1:], goal=CACHE, label="reading both caches")
    others = {"limit": read, "fp32 BLAS": limits.blas(4 * batch * heads * length * size)}
    if paged:
        others["inductor"] = Versus(lambda: compiled()(*on_host()), INDUCTOR)
    operator = "npu_fused_infer_attention_score, paged" if paged else "npu_incre_flash_attention"
    name = f"{operator}, bfloat16, decode"
    return Case(GROUP, name, run, plain, HALF, check, "cpu fp32", others)


def peak(length: int, heads: int = HEADS) -> int:
    """Bytes above inputs, outputs and gradients in float16, forward and backward."""
    q, k, v = (t.requires_grad_() for t in _layers(length, torch.float16, heads))
    start = torch.npu.memory_allocated()
    torch.npu.reset_peak_memory_stats()
    results = torch_npu.npu_fusion_attention(q, k, v, heads, "BNSD", scale=SCALE)
    dy = torch.ones_like(results[0])
    torch.autograd.backward(results[0], dy)
    most = torch.npu.max_memory_allocated() - start
    grads = (q.grad, k.grad, v.grad)
    kept = [t for t in (*results, dy, *grads) if isinstance(t, torch.Tensor)]
    return most - sum(t.untyped_storage().nbytes() for t in kept)


def linear() -> Case:
    """Working memory at S = 4096 by that at 2048; fixed buffers make the ratio less than 2."""
    return Case(
        GROUP, "memory, forward and backward, S=4096", functools.partial(peak, 4096),
        functools.partial(peak, 2048), LINEAR, against="S=2048", unit="B", reads=True, once=True,
    )  # fmt: skip


def long_sequence() -> Case:
    limit = Versus(float(LIMIT), Goal(1.0), "75 MiB")
    return Case(
        GROUP, f"memory, forward and backward, S={LONG}, 2 heads", functools.partial(peak, LONG, 2),
        others={"limit": limit}, unit="B", reads=True, once=True,
    )  # fmt: skip
