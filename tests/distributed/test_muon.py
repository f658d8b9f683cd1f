"""_DistributedMuon on two ranks: matrices in parts take the step of whole ones."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from tests.distributed import job


def values(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(6, 4, generator=generator) for _ in range(3)]


def stepped(rank: int) -> list[torch.Tensor]:
    """A whole matrix, one cut along its columns, and one along its rows, after a step."""
    from torch_npu.optim import _DistributedMuon

    mesh = init_device_mesh("npu", (2,))
    params = []
    for value, grad, dim in zip(values(0), values(1), (None, 1, 0), strict=True):
        if dim is None:
            param = torch.nn.Parameter(value.npu())
            param.grad = grad.npu()
        else:
            param = torch.nn.Parameter(distribute_tensor(value.npu(), mesh, [Shard(dim)]))
            param.grad = distribute_tensor(grad.npu(), mesh, [Shard(dim)])
        params.append(param)
    _DistributedMuon(params, lr=0.1, process_group=dist.group.WORLD).step()
    whole = [p.full_tensor() if isinstance(p, DTensor) else p for p in params]
    return [each.detach().cpu() for each in whole]


def test_parts_take_the_step_of_the_whole() -> None:
    from torch_npu.optim import _DistributedMuon

    params = [torch.nn.Parameter(value.npu()) for value in values(0)]
    for param, grad in zip(params, values(1), strict=True):
        param.grad = grad.npu()
    _DistributedMuon(params, lr=0.1).step()
    for found in job.run(stepped, 2):
        for one, want in zip(found, params, strict=True):
            torch.testing.assert_close(one, want.detach().cpu(), rtol=0, atol=5e-3)
