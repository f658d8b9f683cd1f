"""Operators of the matmul and quantization folders against what they are made of."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch

import torch_npu
from benchmarks.core import INT8, _native_int8
from benchmarks.harness import Case, Goal, Versus

GROUPED = Goal(1.15)
DYNAMIC_QUANT = Goal(1.5)
EXPERTS, HIDDEN, INNER = 64, 256, 512


def cases() -> Iterator[Case]:
    yield quant_matmul()
    for dtype in (torch.float32, torch.bfloat16):
        yield grouped_matmul(dtype)
    for dtype in (torch.float16, torch.bfloat16):
        yield dynamic_quant(dtype)


def quant_matmul() -> Case:
    """int8 at 1024 cubed; as fast as `torch._int_mm` where the CPU has int8 instructions."""
    a = torch.randint(-128, 128, (1024, 1024), dtype=torch.int8)
    b = torch.randint(-128, 128, (1024, 1024), dtype=torch.int8)
    x1, x2, scale = a.npu(), b.npu(), torch.ones(1024, device="npu")

    def body() -> torch.Tensor:
        return torch_npu.npu_quant_matmul(x1, x2, scale, output_dtype=torch.int32)

    def check() -> None:
        assert torch.equal(body().cpu().double(), a.double() @ b.double())

    goal = Goal(1.0) if _native_int8() else INT8
    return Case(
        "npu_quant_matmul",
        "int8 1024x1024x1024",
        body,
        Versus(functools.partial(torch._int_mm, a, b), goal, once=True),
        check=check,
    )


def grouped_matmul(dtype: torch.dtype) -> Case:
    """64 experts in one call, against one matmul for each."""
    counts = torch.randint(8, 57, (EXPERTS,)).tolist()
    tokens = torch.randn(sum(counts), HIDDEN, dtype=dtype, device="npu")
    weights = torch.randn(EXPERTS, HIDDEN, INNER, dtype=dtype, device="npu")
    ends = torch.tensor(counts).cumsum(0).npu()
    pieces = list(zip(tokens.split(counts), weights.unbind(), strict=True))

    def body() -> Any:
        return torch_npu.npu_grouped_matmul(
            [tokens], [weights], group_list=ends, split_item=3, group_type=0, group_list_type=0
        )[0]

    def plain() -> list[torch.Tensor]:
        return [x @ w for x, w in pieces]

    def check() -> None:
        torch.testing.assert_close(body().cpu(), torch.cat(plain()).cpu(), atol=2e-2, rtol=2e-2)

    name = f"{EXPERTS} experts, {str(dtype).removeprefix('torch.')}"
    return Case("npu_grouped_matmul", name, body, plain, GROUPED, check, "npu matmuls")


def dynamic_quant(dtype: torch.dtype) -> Case:
    """Scale and int8 values of each row, against a plain copy of the input."""
    x = torch.randn(4096, 4096, dtype=dtype, device="npu")

    def check() -> None:
        values, scale = torch_npu.npu_dynamic_quant(x)
        exact = x.cpu().double()
        want = exact.abs().amax(-1) / 127
        torch.testing.assert_close(scale.cpu().double(), want, rtol=1e-5, atol=0)
        assert (values.cpu().double() * want[:, None] - exact).abs().max() <= want.max() * 0.51

    name = f"4096x4096 {str(dtype).removeprefix('torch.')}"
    return Case(
        "npu_dynamic_quant",
        name,
        lambda: torch_npu.npu_dynamic_quant(x),
        x.clone,
        DYNAMIC_QUANT,
        check,
        "npu copy",
    )
