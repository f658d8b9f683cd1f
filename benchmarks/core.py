"""The device against the CPU device: large operators, half precision and int8."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.harness import Case, Goal, Versus

LARGE = Goal(1.05)
HALF = Goal(1 / 30)
HALF_TO_FP32 = Goal(1.3)
INT8 = Goal(1 / 20)


def cases() -> Iterator[Case]:
    yield from large()
    yield from half()
    yield from int8()


def on(device: str, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(t.to(device) for t in tensors)


def both(
    group: str, name: str, body: Callable[..., Any], goal: Goal | None, *tensors: torch.Tensor
) -> Case:
    """A case that runs the same body on the npu and on the cpu, and compares the results once."""
    mine, theirs = on("npu", *tensors), on("cpu", *tensors)

    def check() -> None:
        torch.testing.assert_close(body(*mine).cpu(), body(*theirs), atol=2e-2, rtol=2e-2)

    return Case(
        group, name, functools.partial(body, *mine), functools.partial(body, *theirs), goal, check
    )


def large() -> Iterator[Case]:
    """What computing costs: fp32 operators whose time is spent in the kernel."""
    group = "large fp32 operators"
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    wide = torch.randn(4096, 4096)
    image, weight = torch.randn(8, 64, 56, 56), torch.randn(64, 64, 3, 3)
    q = torch.randn(2, 8, 1024, 64)
    yield both(group, "matmul 1024", torch.matmul, LARGE, a, b)
    yield both(group, "add 16M", torch.add, LARGE, wide, wide)
    yield both(group, "exp 16M", torch.exp, LARGE, wide)
    yield both(group, "sum 16M", lambda x: x.sum(-1), LARGE, wide)
    yield both(group, "softmax 4096x4096", lambda x: x.softmax(-1), LARGE, wide)
    yield both(group, "layer_norm 4096x4096", lambda x: F.layer_norm(x, (4096,)), LARGE, wide)
    yield both(
        group, "conv2d 8x64x56x56", lambda x, w: F.conv2d(x, w, padding=1), LARGE, image, weight
    )
    yield both(group, "SDPA 2x8x1024x64", F.scaled_dot_product_attention, LARGE, q, q, q)


def half() -> Iterator[Case]:
    """Half precision, which most CPUs emulate slowly: the CPU device once, and fp32 on the npu by turns."""
    a, b = torch.randn(512, 512), torch.randn(512, 512)
    batch, weight = torch.randn(1024, 512), torch.randn(512, 512)
    image, kernel = torch.randn(2, 32, 64, 64), torch.randn(64, 32, 3, 3)
    q = torch.randn(1, 8, 512, 64)
    bodies: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
        "matmul 512": (torch.matmul, (a, b)),
        "linear 1024x512x512": (F.linear, (batch, weight)),
        "conv2d 2x32x64x64": (lambda x, w: F.conv2d(x, w, padding=1), (image, kernel)),
        "SDPA 1x8x512x64": (F.scaled_dot_product_attention, (q, q, q)),
    }
    for dtype, native in ((torch.bfloat16, _native_bf16()), (torch.float16, _native_fp16())):
        name = str(dtype).removeprefix("torch.")
        for label, (body, tensors) in bodies.items():
            low = tuple(t.to(dtype) for t in tensors)
            mine, theirs, single = on("npu", *low), on("cpu", *low), on("npu", *tensors)

            def check(body: Any = body, low: Any = low, mine: Any = mine) -> None:
                """Rounded once: within one step of the type from the exact result of the rounded inputs."""
                exact = body(*(t.double() for t in low))
                step = torch.finfo(low[0].dtype).eps * exact.abs().max().item()
                assert (body(*mine).cpu().double() - exact).abs().max().item() <= step

            slow = Versus(functools.partial(body, *theirs), None if native else HALF, once=True)
            fast = Versus(functools.partial(body, *single), HALF_TO_FP32)
            yield Case(
                "half precision", f"{label}, {name}", functools.partial(body, *mine), slow, None, check,
                others={"npu fp32": fast},
            )  # fmt: skip


def int8() -> Iterator[Case]:
    """Exact integer products; 4096 deep sums pass 2^24, where fp32 stops counting in ones."""
    for rows, depth, columns in ((512, 512, 512), (1024, 1024, 1024), (256, 4096, 256)):
        a = torch.randint(-128, 128, (rows, depth), dtype=torch.int8)
        b = torch.randint(-128, 128, (depth, columns), dtype=torch.int8)
        mine = on("npu", a, b)

        def check(a: Any = a, b: Any = b, mine: Any = mine) -> None:
            # fp64 counts in ones up to 2^53, and is much faster here than int64
            assert torch.equal(torch._int_mm(*mine).cpu().long(), (a.double() @ b.double()).long())

        yield Case(
            "int8", f"_int_mm {rows}x{depth}x{columns}", functools.partial(torch._int_mm, *mine),
            Versus(functools.partial(torch._int_mm, a, b), None if _native_int8() else INT8, once=True), check=check,
        )  # fmt: skip


def _native_bf16() -> bool:
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def _native_fp16() -> bool:
    return torch.cpu._is_amx_fp16_supported() or torch.ops.mkldnn._is_mkldnn_fp16_supported()


def _native_int8() -> bool:
    return torch.cpu._is_vnni_supported() or torch.cpu._is_amx_tile_supported()
