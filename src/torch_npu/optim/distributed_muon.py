"""_DistributedMuon: Muon (K. Jordan), which steps along the orthogonalized momentum, for matrices in parts on several ranks.

A quintic Newton-Schulz iteration in bfloat16 makes the singular values of the momentum nearly equal. A matrix that is cut along
its columns (Shard(1)) stays cut: the product X X^T is the sum of the ranks' products, one all_reduce a step. One that is cut along
its rows (Shard(0)) is gathered; one rank, in turn by parameter, iterates and sends the result to the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor, Shard

__all__: list[str] = []

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
EPS = 1e-7
STEPS = 5
_SCALES: dict[str | None, Callable[[int, int], float]] = {
    None: lambda rows, columns: math.sqrt(max(1, rows / columns)),
    "original": lambda rows, columns: math.sqrt(max(1, rows / columns)),
    "match_rms_adamw": lambda rows, columns: 0.2 * math.sqrt(max(rows, columns)),
}


def _iterate(
    x: Tensor,
    coefficients: tuple[float, float, float],
    steps: int,
    gram: Callable[[Tensor], Tensor],
) -> Tensor:
    """x <- a x + (b G + c G G) x with G = x x^T, `steps` times."""
    a, b, c = coefficients
    for _ in range(steps):
        g = gram(x)
        x = torch.addmm(x, torch.addmm(g, g, g, beta=b, alpha=c), x, beta=a)
    return x


def _check(grad: Tensor, coefficients: tuple[float, ...], steps: int) -> None:
    if steps >= 100:
        raise ValueError(f"Number of steps must be less than 100, but is {steps}")
    if grad.dim() != 2:
        raise ValueError(
            f"Input tensor gradient must be a 2D matrix, but has {grad.dim()} dimensions"
        )
    if len(coefficients) != 3:
        raise ValueError(
            f"Coefficients must be a tuple of exactly 3 values, not {len(coefficients)}"
        )


def _newtonschulz_orthogonalize(
    grad: Tensor,
    ns_coefficients: tuple[float, float, float] = COEFFICIENTS,
    ns_steps: int = STEPS,
    eps: float = EPS,
) -> Tensor:
    """The nearly orthogonal matrix of the directions of `grad`, bfloat16. The shorter side is the one that is multiplied."""
    _check(grad, ns_coefficients, ns_steps)
    tall = grad.size(0) > grad.size(1)
    x = grad.bfloat16()
    x = x.T if tall else x
    x = x / x.norm().clamp(min=eps)
    x = _iterate(x, ns_coefficients, ns_steps, lambda y: y @ y.T)
    return x.T if tall else x


def _distributed_zeropower_via_newtonschulz(
    local_grad: Tensor,
    ns_coefficients: tuple[float, float, float],
    ns_steps: int,
    eps: float,
    process_group: ProcessGroup,
) -> Tensor:
    """The same for a matrix whose columns are on several ranks: this rank's columns of the result."""
    _check(local_grad, ns_coefficients, ns_steps)

    def summed(part: Tensor) -> Tensor:
        dist.all_reduce(part, op=dist.ReduceOp.SUM, group=process_group)
        return part

    x = local_grad.bfloat16()
    x = x / summed(x.square().sum()).sqrt().clamp(min=eps)
    return _iterate(x, ns_coefficients, ns_steps, lambda y: summed(y @ y.T))


def _shards(param: Tensor) -> list[int]:
    """The dimensions along which a parameter is cut."""
    placements = param.placements if isinstance(param, DTensor) else ()
    return [placement.dim for placement in placements if isinstance(placement, Shard)]


def _is_dtensor_shard(param: Tensor) -> bool:
    return bool(_shards(param))


def _is_dtensor_shard1(param: Tensor) -> bool:
    return 1 in _shards(param)


def _get_shard_dim(param: DTensor) -> int:
    return next(iter(_shards(param)), 0)


class _DistributedMuon(torch.optim.Optimizer):
    """Muon for matrices; with `process_group`, parameters that are cut DTensors are orthogonalized whole.

    Args:
        params: matrices.
        lr: the learning rate.
        weight_decay: decoupled, as in AdamW.
        momentum: of the moving average of gradients.
        nesterov: whether the step mixes the gradient into the momentum once more.
        ns_coefficients: a, b, c of the iteration.
        eps: the smallest norm that the iteration divides by.
        ns_steps: how many iterations.
        adjust_lr_fn: how the rate depends on the shape (A, B): "original" or None sqrt(max(1, A / B)), "match_rms_adamw"
            0.2 sqrt(max(A, B)).
        process_group: the ranks that hold the parts; None: every parameter is whole.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = COEFFICIENTS,
        eps: float = EPS,
        ns_steps: int = STEPS,
        adjust_lr_fn: str | None = None,
        process_group: ProcessGroup | None = None,
    ) -> None:
        if isinstance(lr, Tensor) and lr.numel() != 1:
            raise ValueError("Tensor lr must be 1-element")
        if not lr >= 0:
            raise ValueError(f"Learning rate should be >= 0 but is: {lr}")
        if not momentum >= 0:
            raise ValueError(f"momentum should be >= 0 but is: {momentum}")
        if not weight_decay >= 0:
            raise ValueError(f"weight decay should be >= 0 but is: {weight_decay}")
        if adjust_lr_fn not in _SCALES:
            raise ValueError(f"Adjust learning rate function {adjust_lr_fn} is not supported")
        defaults = {
            "lr": lr,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "nesterov": nesterov,
            "ns_coefficients": ns_coefficients,
            "eps": eps,
            "ns_steps": ns_steps,
            "adjust_lr_fn": adjust_lr_fn,
            "process_group": process_group,
        }
        super().__init__(params, defaults)
        for group in self.param_groups:
            for param in group["params"]:
                if param.ndim != 2:
                    raise ValueError(
                        "_DistributedMuon only supports 2D parameters whereas we found a parameter "
                        f"with size: {param.size()}"
                    )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; `closure` computes the loss anew."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            moving = [param for param in group["params"] if param.grad is not None]
            for index, param in enumerate(moving):
                self._update(index, param, group)
        return loss

    def _update(self, index: int, param: Tensor, group: dict[str, Any]) -> None:
        if param.is_complex():
            raise RuntimeError("_DistributedMuon does not support complex parameters")
        if param.grad.is_sparse:  # type: ignore[union-attr]
            raise RuntimeError("_DistributedMuon does not support sparse gradients")
        grad = param.grad
        if isinstance(grad, DTensor) and _is_dtensor_shard(param):
            grad = grad.to_local()
        assert grad is not None
        state = self.state[param]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(grad)
        buffer = state["momentum_buffer"]
        buffer.lerp_(grad, 1 - group["momentum"])
        direction = grad.lerp(buffer, group["momentum"]) if group["nesterov"] else buffer
        direction = self._orthogonal(index, param, direction, group)
        rate = float(group["lr"])
        param.mul_(1 - rate * group["weight_decay"])
        param.add_(direction, alpha=-rate * _SCALES[group["adjust_lr_fn"]](*param.shape[:2]))

    def _orthogonal(
        self, index: int, param: Tensor, direction: Tensor, group: dict[str, Any]
    ) -> Tensor:
        how = group["ns_coefficients"], group["ns_steps"], group["eps"]
        ranks = group["process_group"]
        if ranks is None or not isinstance(param, DTensor) or not _is_dtensor_shard(param):
            return _newtonschulz_orthogonalize(direction, *how)
        mesh, placements = param.device_mesh, param.placements
        if _is_dtensor_shard1(param):
            part = _distributed_zeropower_via_newtonschulz(direction, *how, ranks)
            return DTensor.from_local(part, mesh, placements)
        rank, size = dist.get_rank(ranks), dist.get_world_size(ranks)
        whole = DTensor.from_local(direction, mesh, placements).full_tensor()
        owner = index % size
        if rank == owner:
            found = _newtonschulz_orthogonalize(whole, *how).contiguous()
        else:
            found = torch.empty(whole.shape, dtype=torch.bfloat16, device=whole.device)
        dist.broadcast(found, group=ranks, group_src=owner)
        part = found.chunk(size, dim=_get_shard_dim(param))[rank].to(whole.dtype).contiguous()
        return DTensor.from_local(part, mesh, placements)
