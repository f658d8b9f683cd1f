"""The product with a transposed second factor, and its gradient by npu_bmmV2."""

from __future__ import annotations

from typing import Any

import torch

from torch_npu.contrib._names import torch_npu

__all__: list[str] = []


class MatmulApply(torch.autograd.Function):
    """`tensor1 @ tensor2.transpose(-2, -1)`, of tensors with the same leading dimensions."""

    @staticmethod
    def forward(ctx: Any, tensor1: torch.Tensor, tensor2: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        ctx.save_for_backward(tensor1, tensor2)
        return torch.matmul(tensor1, tensor2.transpose(-2, -1))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        tensor1, tensor2 = ctx.saved_tensors
        first = torch_npu.npu_bmmV2(grad, tensor2, [])
        return first, torch_npu.npu_bmmV2(grad.transpose(-2, -1), tensor1, [])
