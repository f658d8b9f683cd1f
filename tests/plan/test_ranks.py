"""Groups of any size on one rank, without peers."""

from __future__ import annotations

import pickle
import resource
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import torch_npu

pytestmark = pytest.mark.usefixtures("planned")


@pytest.fixture
def world(planned, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "64")
    dist.init_process_group("hccl")
    yield
    dist.destroy_process_group()


def test_the_world_is_what_the_environment_says(world):
    assert (dist.get_rank(), dist.get_world_size()) == (3, 64)


def test_collectives_of_known_integers(world):
    x = torch.tensor([1, 2], device="npu")
    dist.all_reduce(x)
    assert x.tolist() == [64, 128]
    gathered = torch.empty(64, 2, device="npu", dtype=torch.int64)
    dist.all_gather_into_tensor(gathered, x)
    assert gathered.sum(0).tolist() == [64 * 64, 64 * 128]
    counts, got = torch.arange(64, device="npu"), torch.empty(64, device="npu", dtype=torch.int64)
    dist.all_to_all_single(got, counts)
    assert got.tolist() == [3] * 64  # every rank sends what this one keeps for itself


def test_collectives_of_large_tensors_move_nothing(world):
    before = _resident()
    shard = torch.empty(1 << 26, device="npu", dtype=torch.bfloat16)
    whole = torch.empty(1 << 32, device="npu", dtype=torch.bfloat16)  # 8 GiB
    dist.all_gather_into_tensor(whole, shard)
    dist.reduce_scatter_tensor(shard, whole)
    dist.all_reduce(shard, dist.ReduceOp.AVG)
    dist.barrier()
    assert _resident() - before < 1 << 30


def _resident() -> int:
    """Bytes of this process that lie in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_objects_of_all_ranks_are_this_ranks(world):
    found = [None] * 64
    dist.all_gather_object(found, {"rank": 3})
    assert found == [{"rank": 3}] * 64


def test_what_another_rank_would_send_is_not_known(world):
    x = torch.zeros(1, device="npu", dtype=torch.int64)
    dist.recv(x, 0)
    with pytest.raises(RuntimeError, match="needs the values"):
        x.item()


def test_groups_and_meshes(world):
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("npu", (8, 8), mesh_dim_names=("data", "tensor"))
    assert mesh["tensor"].size() == 8
    assert dist.get_process_group_ranks(mesh.get_group("tensor")) == list(range(8))
    small = dist.new_group([1, 3], backend="gloo")
    assert dist.get_world_size(small) == 2


def test_data_parallel(world):
    model = nn.Linear(256, 64).npu()
    parallel = nn.parallel.DistributedDataParallel(model)
    parallel(torch.randn(4, 256, device="npu")).sum().backward()
    assert model.weight.grad.shape == (64, 256)


def test_fully_sharded(world):
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)).npu()
    fully_shard(model)
    model(torch.randn(4, 256, device="npu")).sum().backward()
    assert model[0].weight.grad.to_local().shape == (1024 // 64, 256)


def test_tensor_parallel(world):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("npu", (64,))
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)).npu()
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    out = model(torch.randn(4, 256, device="npu"))
    out.sum().backward()
    assert out.shape == (4, 256)
    assert model[0].weight.to_local().shape == (1024 // 64, 256)


def test_hybrid_sharding(world):
    """Parameters over 8 ranks, copies of that over 8 servers."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("npu", (8, 8), mesh_dim_names=("replicate", "shard"))
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)).npu()
    fully_shard(model, mesh=mesh)
    model(torch.randn(4, 256, device="npu")).sum().backward()
    assert model[0].weight.grad.to_local().shape == (1024 // 8, 256)


def test_experts_on_a_mesh_of_three_dimensions(world):
    """Tokens to experts with counts that differ, by all_to_all and by the fused operators."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("npu", (4, 2, 8), mesh_dim_names=("data", "pipeline", "expert"))
    group = mesh.get_group("expert")
    assert dist.get_process_group_ranks(group) == list(range(8))
    send, receive = [7, 0, 3, 5, 1, 2, 9, 5], [5] * 8
    x = torch.randn(32, 64, device="npu", dtype=torch.bfloat16)
    got = x.new_empty(40, 64)
    dist.all_to_all_single(got, x, receive, send, group=group)
    name = group._get_backend(torch.device("npu")).get_hccl_comm_name(3)
    ids = torch.arange(32 * 4, device="npu", dtype=torch.int32).remainder(16).view(32, 4)
    x = torch.randn(32, 1024, device="npu", dtype=torch.bfloat16)
    rows, _, places, counts, received, *_ = torch_npu.npu_moe_distribute_dispatch_v2(
        x, ids, name, 8, 3, 16
    )
    assert rows.shape[1] == 1024 and counts.shape == (2,)
    scales = torch.ones(32, 4, device="npu")
    out = torch_npu.npu_moe_distribute_combine_v2(rows, ids, places, received, scales, name, 8, 3, 16)  # fmt: skip
    assert out.shape == x.shape


@pytest.mark.parametrize("schedule", ["ScheduleGPipe", "Schedule1F1B", "ScheduleInterleaved1F1B"])
def test_schedules_of_a_pipeline(world, schedule):
    """This rank is in stage 0 of 4, and of 8 if stages interleave: it has stage 4 too."""
    from torch.distributed import pipelining
    from torch.distributed.device_mesh import init_device_mesh

    group = init_device_mesh("npu", (4, 16), mesh_dim_names=("pp", "dp")).get_group("pp")
    several = schedule == "ScheduleInterleaved1F1B"
    models = [nn.Sequential(nn.Linear(64, 64), nn.GELU()).npu() for _ in range(1 + several)]
    rows = torch.empty(4, 64, device="meta")
    stages = [
        pipelining.PipelineStage(
            model, 4 * i, 4 * len(models), torch.device("npu"), input_args=rows, group=group
        )
        for i, model in enumerate(models)
    ]
    how = getattr(pipelining, schedule)(stages if several else stages[0], 8, loss_fn=F.mse_loss)
    how.step(torch.randn(32, 64, device="npu"))
    for model in models:
        assert model[0].weight.grad.shape == (64, 64)


def test_a_stage_whose_input_nobody_knows(world, monkeypatch):
    from torch.distributed import pipelining

    stage = pipelining.PipelineStage(nn.Linear(8, 8).npu(), 3, 64, torch.device("npu"))
    with pytest.raises(RuntimeError, match=r"stage 3 .* gets its input from a rank that does not run"):  # fmt: skip
        pipelining.ScheduleGPipe(stage, 2, loss_fn=F.mse_loss).step()


def _described(stage, tensor):
    """What a stage sends before its first step: descriptions of tensors since torch 2.13, tensors without memory before."""
    if hasattr(stage, "_StageForwardMeta"):
        return stage._StageForwardMeta(forward_metas=stage.extract_tensor_metas((tensor,)))
    return (tensor.detach().to("meta"),)


def test_a_stage_gets_what_another_planned_rank_sent(world, tmp_path, monkeypatch):
    from torch.distributed import pipelining

    from torch_npu import _plan_pipelining

    monkeypatch.setattr(_plan_pipelining, "_shared", tmp_path)
    sent = _described(pipelining.stage, torch.empty(2, 8).requires_grad_())
    (tmp_path / "1").write_bytes(pickle.dumps(sent))
    model = nn.Linear(8, 8).npu()
    stage = pipelining.PipelineStage(model, 3, 64, torch.device("npu"))
    with pytest.warns(UserWarning, match="stage 3 is taken to get what stage 1 gets"):
        pipelining.ScheduleGPipe(stage, 2, loss_fn=F.mse_loss).step()
    assert model.weight.grad is not None
    assert (tmp_path / "4").exists()


@pytest.mark.parametrize("ranks", [1024, 8192])
def test_large_worlds(planned, monkeypatch, ranks):
    from torch.distributed.device_mesh import init_device_mesh

    for name, value in {"RANK": 9, "LOCAL_RANK": 1, "WORLD_SIZE": ranks}.items():
        monkeypatch.setenv(name, str(value))
    dist.init_process_group("hccl")
    try:
        mesh = init_device_mesh("npu", (ranks // 8, 8), mesh_dim_names=("data", "tensor"))
        x = torch.ones(3, device="npu", dtype=torch.int64)
        dist.all_reduce(x, group=mesh.get_group("data"))
        assert x.tolist() == [ranks // 8] * 3
        assert mesh.get_local_rank("tensor") == 1
    finally:
        dist.destroy_process_group()


def test_messages_of_a_pipeline(world):
    x = torch.randn(16, 256, device="npu")
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, x, 4),
            dist.P2POp(dist.irecv, torch.empty_like(x), 2),
        ]
    )
    for work in works:
        work.wait()
    assert works and all(work.is_completed() for work in works)


def test_the_log_of_tasks_has_collectives(world):
    from softnpu import _C

    _C.trace_start(True, 1000)
    dist.all_reduce(torch.ones(8, 4, device="npu"))
    _C.trace_stop()
    (found,) = [record for record in _C.trace_take() if record[0] == "hccl::all_reduce"]
    assert found[7] == [((8, 4), torch.float32)] == found[8]
    assert found[9] == tuple(range(64))
