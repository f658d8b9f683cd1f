"""What tests of graph mode share: the comparison of a compiled function with eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree


def randn(*shape: int, **options: Any) -> torch.Tensor:
    """Numbers on npu that are the same in every run."""
    generator = torch.Generator().manual_seed(sum(shape) + len(shape))
    dtype = options.pop("dtype", torch.float32)
    requires_grad = options.pop("requires_grad", False)
    value = torch.randn(shape, generator=generator).to(dtype)
    return value.to(options.pop("device", "npu")).requires_grad_(requires_grad)


def tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def copies(values: tuple[Any, ...]) -> list[Any]:
    return [
        v.detach().clone().requires_grad_(v.requires_grad) if isinstance(v, torch.Tensor) else v
        for v in values
    ]


def assert_same_as_eager(
    function: Callable[..., Any],
    *inputs: Any,
    compiled: Callable[..., Any] | None = None,
    tolerance: float = 1e-5,
    **compile_options: Any,
) -> Any:
    """Results, changes of inputs and gradients of the compiled function are eager's."""
    options = {"backend": "npu"} | compile_options
    compiled = compiled or torch.compile(function, **options)
    plain, graph = copies(inputs), copies(inputs)
    torch.npu.manual_seed(11)
    expected = function(*plain)
    torch.npu.manual_seed(11)
    actual = compiled(*graph)
    for theirs, mine in zip(tensors(expected), tensors(actual), strict=True):
        assert (mine.device, mine.stride()) == (theirs.device, theirs.stride())
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)
    if any(v.requires_grad for v in tensors(plain)):
        for results in (expected, actual):
            sum(r.float().sum() for r in tensors(results) if r.requires_grad).backward()
    for theirs, mine in zip(tensors(plain), tensors(graph), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)
        if theirs.grad is not None:
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=tolerance, atol=tolerance)
    return actual
