"""Groups of any size on one rank, without peers."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

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
    shard = torch.empty(1 << 26, device="npu", dtype=torch.bfloat16)
    whole = torch.empty(1 << 32, device="npu", dtype=torch.bfloat16)  # 8 GiB
    dist.all_gather_into_tensor(whole, shard)
    dist.reduce_scatter_tensor(shard, whole)
    dist.all_reduce(shard, dist.ReduceOp.AVG)
    dist.barrier()


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


def test_the_log_of_tasks_has_collectives(world):
    from softnpu import _C

    _C.trace_start(True, 1000)
    dist.all_reduce(torch.ones(8, 4, device="npu"))
    _C.trace_stop()
    (found,) = [record for record in _C.trace_take() if record[0] == "hccl::all_reduce"]
    assert found[7] == [((8, 4), torch.float32)] == found[8]
    assert found[9] == tuple(range(64))
