"""Parallel training on npu gives what one process gives: DDP, FSDP2, tensor parallel, ZeRO, pipelines, checkpoints."""

from __future__ import annotations

import tempfile

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.distributed.nn.functional as dist_nn
from torch import nn
from torch.distributed._functional_collectives import (
    all_gather_tensor,
    all_reduce,
    all_to_all_single,
    reduce_scatter_tensor,
)
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, SplitPoint
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from tests.distributed import job
from torch_npu.distributed.pipelining import pipeline

STEPS = 3


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


def net() -> Net:
    torch.manual_seed(1)
    return Net()


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(4, 8, generator=generator), torch.randn(4, 4, generator=generator)


def train_alone(ranks: int) -> nn.Module:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for step in range(STEPS):
        parts = [batch(step, r) for r in range(ranks)]
        x, y = (torch.cat(list(t)) for t in zip(*parts, strict=True))
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return model


def train(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int) -> None:
    for step in range(STEPS):
        x, y = (t.npu() for t in batch(step, rank))
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()


def same(state: dict, ranks: int) -> None:
    for name, want in train_alone(ranks).state_dict().items():
        have = state[name]
        have = have.full_tensor() if isinstance(have, DTensor) else have
        torch.testing.assert_close(have.cpu(), want, rtol=1e-4, atol=1e-5)


def data_parallel(rank: int) -> None:
    ranks = dist.get_world_size()
    model = DistributedDataParallel(net().npu(), device_ids=[rank], bucket_cap_mb=0.0001)
    train(model, torch.optim.Adam(model.parameters(), lr=0.05), rank)
    same(model.module.state_dict(), ranks)
    model = DistributedDataParallel(net().npu())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.05)
    train(model, optimizer, rank)
    same(model.module.state_dict(), ranks)


def hooked(rank: int) -> None:
    """PowerSGD's hook begins operations in the callbacks of others; at full rank it gives the mean."""
    ranks = dist.get_world_size()
    model = DistributedDataParallel(net().npu(), bucket_cap_mb=0.0001)
    model.register_comm_hook(None, default_hooks.allreduce_hook)
    train(model, torch.optim.Adam(model.parameters(), lr=0.05), rank)
    same(model.module.state_dict(), ranks)
    # One bucket: callbacks of several may begin their operations in another order.
    model = DistributedDataParallel(net().npu())
    power = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=8, start_powerSGD_iter=2, min_compression_rate=0.1
    )
    model.register_comm_hook(power, powerSGD_hook.powerSGD_hook)
    train(model, torch.optim.Adam(model.parameters(), lr=0.05), rank)
    assert power.p_memory_dict, "it compressed"
    same(model.module.state_dict(), ranks)


def sharded(rank: int) -> None:
    ranks = dist.get_world_size()
    mesh = init_device_mesh("npu", (ranks,))
    model = net().npu()
    for part in (model.up, model.down, model):
        fully_shard(part, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    train(model, optimizer, rank)
    same(model.state_dict(), ranks)
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder, 0)
    dcp.save({"model": model.state_dict()}, checkpoint_id=folder[0])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    state = {"model": model.state_dict()}
    dcp.load(state, checkpoint_id=folder[0])
    model.load_state_dict(state["model"])
    same(model.state_dict(), ranks)


def tensor_parallel(rank: int) -> None:
    mesh = init_device_mesh("npu", (dist.get_world_size(),))
    x = batch(0, 0)[0]
    model = parallelize_module(
        net().npu(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()}
    )
    alone, out = net(), model(x.npu())
    torch.testing.assert_close(out.cpu(), alone(x), rtol=1e-5, atol=1e-5)
    out.square().sum().backward()
    alone(x).square().sum().backward()
    for name, parameter in alone.named_parameters():
        have = model.get_parameter(name).grad
        have = have.full_tensor() if isinstance(have, DTensor) else have
        torch.testing.assert_close(have.cpu(), parameter.grad, rtol=1e-4, atol=1e-5)
    whole = torch.arange(16.0).view(4, 4)
    pieces = distribute_tensor(whole.npu(), mesh, [Shard(0)])
    product = pieces @ distribute_tensor(whole.npu(), mesh, [Replicate()])
    torch.testing.assert_close(product.full_tensor().cpu(), whole @ whole)
    torch.testing.assert_close(
        pieces.redistribute(mesh, [Shard(1)]).full_tensor().cpu(), whole, rtol=0, atol=0
    )


def pipelined(rank: int) -> None:
    ranks = dist.get_world_size()
    x, y = batch(0, 0)
    alone = net()
    for part in range(2):
        piece = slice(2 * part, 2 * part + 2)
        (nn.functional.mse_loss(alone(x[piece]), y[piece]) / 2).backward()
    want = (alone.up if rank == 0 else alone.down).weight.grad
    device = torch.device("npu", rank)
    for kind in (ScheduleGPipe, Schedule1F1B):
        whole = net()
        parts = [whole.up, nn.Sequential(nn.ReLU(), whole.down)]
        stage = PipelineStage(parts[rank].npu(), rank, ranks, device)
        schedule = kind(stage, n_microbatches=2, loss_fn=nn.functional.mse_loss)
        step(schedule, rank, x, y)
        have = (parts[0] if rank == 0 else parts[1][1]).weight.grad
        torch.testing.assert_close(have.cpu(), want, rtol=1e-4, atol=1e-5)
    split = {"down": SplitPoint.BEGINNING}
    pipe = pipeline(net(), (x[:2],), split_spec=split)
    stage = pipe.build_stage(rank, device)
    stage.submod.to(device)
    step(ScheduleGPipe(stage, 2, loss_fn=nn.functional.mse_loss), rank, x, y)
    have = next(p.grad for n, p in stage.submod.named_parameters() if n.endswith("weight"))
    torch.testing.assert_close(have.cpu(), want, rtol=1e-4, atol=1e-5)


def step(schedule, rank: int, x: torch.Tensor, y: torch.Tensor) -> None:
    if rank == 0:
        schedule.step(x.npu())
    else:
        schedule.step(target=y.npu(), losses=[])


def gradients(rank: int) -> None:
    """Collectives with gradients, and the functional ones, in eager and compiled."""
    ranks = dist.get_world_size()
    x = torch.full((2,), float(rank + 1), device="npu", requires_grad=True)
    (dist_nn.all_reduce(x) * (rank + 1)).sum().backward()
    assert x.grad.tolist() == [float(sum(range(1, ranks + 1)))] * 2
    x = torch.ones(2, device="npu", requires_grad=True)
    out = torch.empty(2 * ranks, device="npu")
    (dist_nn._all_gather_base(out, x) * torch.arange(2.0 * ranks, device="npu")).sum().backward()
    assert x.grad.tolist() == [ranks * (2.0 * rank), ranks * (2.0 * rank + 1)]
    x = torch.ones(ranks, device="npu", requires_grad=True)
    dist_nn.all_to_all_single(torch.empty(ranks, device="npu"), x * 1.0).mul(
        rank + 1.0
    ).sum().backward()
    assert x.grad.tolist() == [r + 1.0 for r in range(ranks)]
    x = torch.ones(2, device="npu", requires_grad=True)
    parts = dist_nn.all_gather(x * (rank + 1.0))
    sum(part * (r + 1.0) for r, part in enumerate(parts)).sum().backward()
    assert x.grad.tolist() == [ranks * (rank + 1.0) ** 2] * 2
    x = torch.ones(2 * ranks, device="npu", requires_grad=True)
    part = dist_nn.reduce_scatter(torch.empty(2, device="npu"), list((x * 1.0).chunk(ranks)))
    (part * (rank + 1.0)).sum().backward()
    assert x.grad.tolist() == [r + 1.0 for r in range(ranks) for _ in range(2)]
    x = torch.ones(2, device="npu", requires_grad=True)
    (dist_nn.broadcast(x * 1.0, 0) * (rank + 1.0)).sum().backward()
    assert x.grad.tolist() == [sum(range(1, ranks + 1)) if rank == 0 else 0.0] * 2

    def step(x: torch.Tensor) -> torch.Tensor:
        total = all_reduce(x, "sum", dist.group.WORLD)
        gathered = all_gather_tensor(total, 0, dist.group.WORLD)
        part = reduce_scatter_tensor(gathered, "sum", 0, dist.group.WORLD)
        return all_to_all_single(part, None, None, dist.group.WORLD) * 2

    x = torch.arange(float(ranks), device="npu") + rank
    want = step(x)
    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)(x)
    assert torch.equal(want.cpu(), compiled.cpu())


def everything(rank: int) -> None:
    for part in (data_parallel, hooked, sharded, tensor_parallel, pipelined, gradients):
        part(rank)


def test_training():
    job.run(everything, 2, timeout=300)


def test_pipelines_by_the_fx_tracer_are_refused():
    with pytest.raises(
        NotImplementedError, match="(?s)parameter 'mode' is not supported.*ERR02007"
    ):
        pipeline(net(), (torch.ones(1, 8),), mode="fx")
    with pytest.raises(ValueError, match="'mode' must be None, 'export' or 'fx', but received 'x'"):
        pipeline(net(), (torch.ones(1, 8),), mode="x")
    with pytest.raises(ValueError, match="'atomic_units' goes with mode='fx' only"):
        pipeline(net(), (torch.ones(1, 8),), atomic_units=["up"])
