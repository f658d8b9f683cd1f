"""Ranks of a job: what a process is told, and rows for several sizes."""

from __future__ import annotations

import pytest

from softnpu import chips
from softnpu.plan import ranks
from softnpu.plan.clock import Topology, collectives
from softnpu.plan.clock.constants import DEFAULT
from tests.plan.programs import plan

SHARDED = """
import os
import torch
import torch.distributed as dist
import torch_npu
from torch.distributed.fsdp import fully_shard

torch.npu.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("hccl")
model = torch.nn.Sequential(*(torch.nn.Linear(256, 256, bias=False) for _ in range(4))).npu()
for layer in model:
    fully_shard(layer)
optimizer = torch.optim.AdamW(model.parameters(), foreach=False, fused=False)
for _ in range(2):
    model(torch.ones(64, 256, device="npu")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print("rank", dist.get_rank(), "of", dist.get_world_size(), "device", torch.npu.current_device())
"""
WEIGHTS = 4 * 4 * 256 * 256


def job(**more):
    return ranks.Job(["python"], chips.get("Ascend910B3"), {"SOFTNPU_SOC": "Ascend910B3"}, True, **more)  # fmt: skip


def test_environment_as_torchrun_sets_it():
    found = ranks.environment_of(job(), 64, 13)
    assert (found["RANK"], found["WORLD_SIZE"]) == ("13", "64")
    assert (found["LOCAL_RANK"], found["LOCAL_WORLD_SIZE"]) == ("5", "8")
    assert (found["GROUP_RANK"], found["GROUP_WORLD_SIZE"]) == ("1", "8")
    assert found["MASTER_ADDR"] and found["MASTER_PORT"].isdecimal()


def test_few_ranks_share_a_server():
    found = ranks.environment_of(job(), 4, 3)
    assert (found["LOCAL_RANK"], found["LOCAL_WORLD_SIZE"], found["GROUP_RANK"]) == ("3", "4", "0")


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    directory = tmp_path_factory.mktemp("ranks")
    page = directory / "plan.html"
    found, done = plan(directory, SHARDED, options=("--ranks", "8,64", "--rank", "7", "--page", str(page)))  # fmt: skip
    return found, done, page.read_text("utf-8")


def test_each_process_is_one_rank(sweep):
    assert sweep[1].stdout == "rank 7 of 8 device 7\nrank 7 of 64 device 7\n"


def test_a_row_for_each_number_of_ranks(sweep):
    found, done, page = sweep
    assert [job["ranks"] for job in found["jobs"]] == [8, 64]
    assert "\n8 ranks: step " in done.stderr and "\n64 ranks: step " in done.stderr
    assert "Step time, seconds" in page and page.count("<h2>") == 2


@pytest.mark.parametrize("index", [0, 1])
def test_what_is_sharded_gets_smaller(sweep, index):
    job = sweep[0]["jobs"][index]
    (rank,) = job["by_rank"]
    assert rank["by_kind"]["parameters"] == WEIGHTS // job["ranks"]
    assert rank["by_kind"]["optimizer state"] == 2 * WEIGHTS // job["ranks"]
    assert not any(one["name"].startswith("shard") for one in rank["advice"])


def test_collectives_of_the_step(sweep):
    (rank,) = sweep[0]["jobs"][1]["by_rank"]
    moved = [kernel for kernel in rank["kernels"] if kernel["kind"] == "collective"]
    names = [kernel["name"] for kernel in moved]
    assert names.count("hccl::reduce_scatter") == 4
    assert names.count("hccl::all_gather") >= 4
    # on a stream of their own, and the first product waits for the first of them
    assert not {k["stream"] for k in moved} & {k["stream"] for k in rank["kernels"] if k["kind"] == "kernel"}  # fmt: skip
    product = next(k for k in rank["kernels"] if k["name"] in ("aten::mm", "aten::linear"))
    assert product["start"] >= moved[0]["start"] + moved[0]["seconds"]
    assert rank["exposed_communication_seconds"] > 0
    assert rank["hccl_buffer_bytes"] == 2 * 200 << 20


FUSED = """
import os
import torch
import torch.distributed as dist
import torch_npu

torch.npu.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("hccl")
group = dist.new_group(list(range(8)))
name = group._get_backend(torch.device("npu")).get_hccl_comm_name(dist.get_rank())
x = torch.empty(256, 2048, device="npu", dtype=torch.bfloat16)
w = torch.empty(2048, 4096, device="npu", dtype=torch.bfloat16)
ids = torch.arange(256 * 4, device="npu", dtype=torch.int32).remainder(16).view(256, 4)
torch_npu.npu_mm_all_reduce_base(x, w, name)
torch_npu.npu_moe_distribute_dispatch_v2(x, ids, name, 8, 0, 16)
dist.all_reduce(torch.empty(1 << 20, device="npu"), group=group)
"""


def test_fused_operators_count_their_communication(tmp_path):
    """And operators without a model take what they take alone."""
    found, _ = plan(tmp_path, FUSED, options=("--ranks", "16"))
    (rank,) = found["jobs"][0]["by_rank"]
    kernels = {kernel["name"]: kernel for kernel in rank["kernels"]}
    product = kernels["npu::npu_mm_all_reduce_base"]
    topology = Topology.of(chips.get("Ascend910B3"), 16)
    members = topology.group(range(8))
    reduced = collectives.cost("all_reduce", 256 * 4096 * 2, members, topology, DEFAULT)
    assert (
        product["seconds"] == pytest.approx(reduced.seconds) and product["bound"] == reduced.bound
    )
    assert not [k for k in rank["kernels"] if k["kind"] == "collective"][1:]  # none from inside
    sent = collectives.exchange(256 * 4 * 2048 * 2, 8, topology, DEFAULT, normal=False)
    assert kernels["npu::npu_moe_distribute_dispatch_v2"]["seconds"] == pytest.approx(sent.seconds)
    alone = collectives.cost("all_reduce", 4 << 20, members, topology, DEFAULT)
    assert kernels["hccl::all_reduce"]["seconds"] == pytest.approx(alone.seconds)
    assert rank["hccl_buffer_bytes"] == 2 * 200 << 20
