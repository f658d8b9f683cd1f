"""Tokens into and out of caches of pages, and microscaling quantization, beside their formulas."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

import torch_npu
from benchmarks import limits
from benchmarks.harness import Case, Goal, Versus
from benchmarks.kernels import matrix
from benchmarks.side_by_side import Kernel
from softnpu import settings

TOKENS, BLOCK, BLOCKS, HEADS, SIZE = 2048, 128, 64, 8, 128
INDUCTOR, COPY = Goal(1.0), Goal(2.0)
GROUP = "caches of pages"


def on_950(call: Callable[..., Any]) -> Callable[..., Any]:
    """Calls as Ascend950, which has these formats."""

    def run(*args: Any) -> Any:
        with settings.override(soc="Ascend950"):
            return call(*args)

    return run


def mx_quant(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """float8_e4m3fn in blocks of 32 along the last axis, by the OCP MX specification."""
    blocks = x.float().unflatten(-1, (-1, 32))
    byte = ((blocks.abs().amax(-1, keepdim=True).view(torch.int32) >> 23) - 8).clamp(min=0)
    y = (blocks * ((254 - byte) << 23).view(torch.float32)).clamp(-448, 448)
    scale = byte.squeeze(-1).to(torch.uint8).unflatten(-1, (-1, 2))
    return y.to(torch.float8_e4m3fn).flatten(-2), scale


def mx_quant_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same along the first axis."""
    blocks = x.float().unflatten(0, (-1, 32))
    byte = ((blocks.abs().amax(1, keepdim=True).view(torch.int32) >> 23) - 8).clamp(min=0)
    y = (blocks * ((254 - byte) << 23).view(torch.float32)).clamp(-448, 448)
    scale = byte.squeeze(1).to(torch.uint8).unflatten(0, (-1, 2)).movedim(1, -1)
    return y.to(torch.float8_e4m3fn).flatten(0, 1), scale.contiguous()


def quantize(axis: int) -> Callable[..., Any]:
    return on_950(
        lambda x: torch_npu.npu_dynamic_mx_quant(x, axis=axis, dst_type=torch.float8_e4m3fn)
    )


KERNELS = [
    Kernel("npu_dynamic_mx_quant", lambda dtype: (matrix(dtype),), quantize(-1), mx_quant),
    Kernel("npu_dynamic_mx_quant, axis 0", lambda d: (matrix(d),), quantize(0), mx_quant_rows),
]


@functools.cache
def tokens() -> tuple[torch.Tensor, ...]:
    """key, value, their caches and the slots."""
    rows = [torch.randn(TOKENS, HEADS, SIZE).bfloat16() for _ in range(2)]
    caches = [torch.randn(BLOCKS, BLOCK, HEADS, SIZE).bfloat16() for _ in range(2)]
    return *rows, *caches, torch.randperm(BLOCKS * BLOCK)[:TOKENS].int()


@functools.cache
def on_device() -> tuple[torch.Tensor, ...]:
    return tuple(t.npu() for t in tokens())


def scatter(key, value, key_cache, value_cache, slots):
    page, place = slots.long() // BLOCK, slots.long() % BLOCK
    key_cache.index_put_((page, place), key)
    value_cache.index_put_((page, place), value)


def gather(key_cache, value_cache, table, key, value):
    key.copy_(key_cache[table].flatten(0, 2))
    value.copy_(value_cache[table].flatten(0, 2))


def _scattering(name: str, call: Callable[..., Any]) -> Case:
    def check() -> None:
        scatter(*tokens())
        call(*on_device())
        for got, want in zip(on_device()[2:4], tokens()[2:4], strict=True):
            assert torch.equal(got.cpu(), want)

    return _case(name, lambda: call(*on_device()), scatter, tokens, check)


def _gathering() -> Case:
    table = torch.randperm(BLOCKS)[: TOKENS // BLOCK].view(2, -1).int()
    lengths = torch.full((2,), TOKENS // 2, dtype=torch.int32)

    def host() -> tuple[torch.Tensor, ...]:
        key, value, key_cache, value_cache, _ = tokens()
        return key_cache, value_cache, table, key, value

    @functools.cache
    def device() -> tuple[torch.Tensor, ...]:
        key_cache, value_cache, ids, key, value = (t.npu() for t in host())
        return key_cache, value_cache, ids, lengths.npu(), key, value

    def check() -> None:
        gather(*host())
        torch_npu.npu_gather_pa_kv_cache(*device())
        for got, want in zip(device()[4:], host()[3:], strict=True):
            assert torch.equal(got.cpu(), want)

    run = lambda: torch_npu.npu_gather_pa_kv_cache(*device())  # noqa: E731
    return _case("npu_gather_pa_kv_cache, bfloat16", run, gather, host, check)


def _case(name, subject, formula, inputs, check) -> Case:
    compiled = functools.cache(lambda: torch.compile(formula, dynamic=False))
    moved = 4 * TOKENS * HEADS * SIZE * 2  # key and value, read and written
    others = {
        "inductor": Versus(lambda: compiled()(*inputs()), INDUCTOR),
        "limit": limits.copying(moved, COPY),
    }
    return Case(GROUP, name, subject, lambda: formula(*inputs()), None, check, others=others)


def cases() -> Iterator[Case]:
    for kernel in KERNELS:
        yield from kernel.cases("microscaling")
    yield _scattering(
        "npu_scatter_pa_kv_cache, bfloat16",
        lambda *args: torch_npu.npu_scatter_pa_kv_cache(*args, cache_mode="Norm"),
    )
    yield _scattering("_npu_reshape_and_cache, bfloat16", torch_npu._npu_reshape_and_cache)
    yield _gathering()
