"""torch_npu.utils.syncbatchnorm: batch normalization over the ranks of a group, as a function with a gradient."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from torch_npu._errors import ErrCode, ops_error

__all__ = ["SyncBatchNorm"]


class SyncBatchNorm(torch.autograd.Function):
    """Normalizes with the mean and the variance of all ranks' samples; `world_size` ranks are in `process_group`."""

    @staticmethod
    def forward(  # type: ignore[override]
        self: Any,
        input_tensor: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        running_mean: torch.Tensor | None,
        running_var: torch.Tensor | None,
        eps: float,
        momentum: float,
        process_group: Any,
        world_size: int,
    ) -> torch.Tensor:
        x = input_tensor.contiguous()
        mean, invstd = torch.batch_norm_stats(x, eps)
        count = torch.full((1,), x.numel() // x.size(1), dtype=mean.dtype, device=mean.device)
        own = torch.cat([mean, invstd, count])
        every = [torch.empty_like(own) for _ in range(world_size)]
        dist.all_gather(every, own, process_group)
        means, invstds, counts = torch.stack(every).split(x.size(1), dim=1)
        if counts.sum() == 1:
            raise ValueError(
                "SyncBatchNorm: more than one value a channel is needed to train."
                + ops_error(ErrCode.VALUE)
            )
        mean, invstd = torch.batch_norm_gather_stats_with_counts(
            x, means, invstds, running_mean, running_var, momentum, eps, counts.view(-1)
        )
        self.save_for_backward(x, weight, mean, invstd, counts.view(-1).to(torch.int32))
        self.process_group = process_group
        return torch.batch_norm_elemt(x, weight, bias, mean, invstd, eps)

    @staticmethod
    def backward(self: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        x, weight, mean, invstd, counts = self.saved_tensors
        needs = self.needs_input_grad[:3]
        grad = grad_output.contiguous()
        sums, products, of_weight, of_bias = torch.batch_norm_backward_reduce(
            grad, x, mean, invstd, weight, *needs
        )
        of_input = None
        if needs[0]:
            both = torch.cat([sums, products])
            dist.all_reduce(both, dist.ReduceOp.SUM, self.process_group)
            sums, products = both.split(x.size(1))
            of_input = torch.batch_norm_backward_elemt(
                grad, x, mean, invstd, weight, sums, products, counts
            )
        affine = weight is not None
        return (
            of_input,
            of_weight if affine and needs[1] else None,
            of_bias if affine and needs[2] else None,
            *[None] * 6,
        )
