"""Groups: how they are made, named, given options, made anew and destroyed, and what they say when misused."""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.distributed.device_mesh import init_device_mesh

import torch_npu
from tests.device.process import run_python
from tests.distributed import job
from torch_npu._C._distributed_c10d import ProcessGroupHCCL
from torch_npu.distributed.distributed_c10d import backend_of


def total(group=None, value=1.0):
    tensor = torch.full((2,), value, device="npu")
    dist.all_reduce(tensor, group=group)
    return tensor[0].item()


def subgroups(rank: int) -> None:
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = pairs[rank // 2]
    assert total(mine, float(rank)) == (1 if rank < 2 else 5)
    other = pairs[1 - rank // 2]
    assert other == dist.GroupMember.NON_GROUP_MEMBER
    host = dist.new_group(backend="gloo")
    number = torch.tensor([rank])
    dist.all_reduce(number, group=host)
    assert number.item() == 6
    mesh = init_device_mesh("npu", (2, 2), mesh_dim_names=("data", "model"))
    assert total(mesh["model"].get_group(), float(rank)) == (1 if rank < 2 else 5)
    assert total(mesh["data"].get_group(), float(rank)) == (2 if rank % 2 == 0 else 4)


def names(rank: int) -> None:
    first = backend_of()
    assert isinstance(first, ProcessGroupHCCL) and first.name() == "hccl"
    again = backend_of(dist.new_group())
    assert again.get_hccl_comm_name(rank, init_comm=False) == ""
    name = again.get_hccl_comm_name(rank)
    assert name and name != first.get_hccl_comm_name(rank)
    assert again.get_hccl_comm_name(rank, init_comm=False) == name
    everyone: list = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, name)
    assert set(everyone) == {name}
    third = backend_of(dist.new_group())
    third._set_hccl_comm_name("mine")
    assert third.get_hccl_comm_name(rank) == "mine"
    with pytest.raises(RuntimeError, match="(?s)already set the name.*ERR02003 DIST invalid value"):
        third._set_hccl_comm_name("yours")
    with pytest.raises(RuntimeError, match="length of the name must be between 1 and 127"):
        backend_of(dist.new_group())._set_hccl_comm_name("x" * 128)
    with pytest.raises(RuntimeError, match="Invalid rank -1"):
        first.get_hccl_comm_name(-1)


def options(rank: int) -> None:
    chosen = ProcessGroupHCCL.Options()
    chosen.hccl_config = {"hccl_buffer_size": 300, "group_name": "custom"}
    chosen.is_high_priority_stream = True
    group = dist.new_group(pg_options=chosen, timeout=timedelta(seconds=33))
    backend = backend_of(group)
    assert backend.options.hccl_config == {"hccl_buffer_size": 300, "group_name": "custom"}
    assert backend.options.is_high_priority_stream
    assert backend.get_hccl_comm_name(rank) == "custom"
    assert backend.options._timeout == timedelta(seconds=33)
    backend._set_default_timeout(timedelta(seconds=44))
    assert backend.options._timeout == timedelta(seconds=44)
    assert total(group) == dist.get_world_size()
    wrong = ProcessGroupHCCL.Options()
    wrong.hccl_config = {"hccl_buffer_size": "large"}
    with pytest.raises(RuntimeError, match="(?s)hccl_buffer_size should be int.*ERR02002 DIST"):
        dist.new_group(pg_options=wrong)


def direct(rank: int) -> None:
    """The class itself, as upstream's own tests make it."""
    store = dist.PrefixStore("direct", c10d._get_default_store())
    group = ProcessGroupHCCL(store, rank, dist.get_world_size(), timedelta(seconds=30))
    tensor = torch.ones(2, device="npu")
    group.allreduce([tensor]).wait()
    assert tensor.tolist() == [float(dist.get_world_size())] * 2
    before = group._sequence()
    group.barrier().wait()
    assert group._sequence() == before + 1


def anew(rank: int) -> None:
    group = dist.new_group()
    assert total(group) == dist.get_world_size()
    assert torch_npu.distributed.reinit_process_group(group) is group
    assert total(group) == dist.get_world_size()
    assert torch_npu.distributed.reinit_process_group(group, rebuild_link=False) is None
    backend = backend_of(group)
    dist.barrier()
    backend.abort()
    with pytest.raises(RuntimeError, match="cannot be used, since it was aborted on rank"):
        total(group)
    with pytest.raises(RuntimeError, match="need rebuild_link=True"):
        torch_npu.distributed.reinit_process_group(rebuild_link=False)
    dist.barrier()
    torch_npu.distributed.reinit_process_group(group)
    assert total(group) == dist.get_world_size()


def misuse(rank: int) -> None:
    group = dist.new_group()
    backend = backend_of(group)
    tensor = torch.ones(2, device="npu")
    with pytest.raises(
        RuntimeError, match=r"(?s)Cannot use ReduceOp.BAND with HCCL.*ERR02007 DIST"
    ):
        dist.all_reduce(tensor.int(), dist.ReduceOp.BAND)
    with pytest.raises(RuntimeError, match="HCCL allreduce: Unsupported data type Double"):
        dist.all_reduce(tensor.to(tensor.device, torch.float64))
    with pytest.raises(RuntimeError, match="PreMulSum Data type must be half, float, bfloat16"):
        dist.all_reduce(tensor.int(), torch_npu.distributed._make_hccl_premul_sum(2.0))
    with pytest.raises(RuntimeError, match="output tensor size must be equal to world_size times"):
        dist.all_gather_into_tensor(torch.empty(3, device="npu"), tensor)
    with pytest.raises(RuntimeError, match="Number of tensor splits not equal to group size"):
        dist.all_to_all_single(tensor.clone(), tensor, [1], [2])
    with pytest.raises(RuntimeError, match="Split sizes doesn't match total dim 0 size"):
        dist.all_to_all_single(tensor.clone(), tensor, [1, 2], [2, 1])
    with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
        dist.all_reduce(torch.ones(2))
    dist.barrier()
    dist.destroy_process_group(group)
    with pytest.raises(
        RuntimeError, match="(?s)destroyed or shut down and cannot be used.*ERR02200"
    ):
        backend.allreduce([tensor])


def everything(rank: int) -> None:
    for part in (subgroups, names, options, direct, anew):
        part(rank)


def mixed(rank: int, ranks: int, folder: str) -> None:
    """One group for both devices."""
    dist.init_process_group("cpu:gloo,npu:hccl", **job.store_options(folder, rank, ranks))
    assert total() == ranks
    host = torch.ones(2)
    dist.all_reduce(host)
    assert host[0].item() == ranks
    dist.destroy_process_group()


def plain(rank: int, ranks: int, folder: str) -> None:
    """No backend named: npu tensors find hccl."""
    dist.init_process_group(
        device_id=torch.device("npu", rank), **job.store_options(folder, rank, ranks)
    )
    assert total() == ranks and dist.get_backend() in ("hccl", "undefined")
    dist.destroy_process_group()
    second = Path(folder) / "second"
    second.mkdir(exist_ok=True)
    mixed(rank, ranks, str(second))


def mismatch(rank: int) -> None:
    """With TORCH_DISTRIBUTED_DEBUG=DETAIL all ranks are told."""
    with pytest.raises(RuntimeError, match="(?s)Detected mismatch between collectives on ranks"):
        dist.all_reduce(torch.ones(2 + rank, device="npu"))
    with pytest.raises(RuntimeError, match="(?s)Detected mismatch between collectives on ranks"):
        dist.all_reduce(torch.ones(2, device="npu", dtype=[torch.float32, torch.int32][rank]))
    assert total() == 2
    assert backend_of().get_hccl_comm_name(rank)


def test_available():
    assert torch_npu.distributed.is_hccl_available() and torch_npu.distributed.is_available()
    assert dist.is_hccl_available() and dist.Backend.HCCL == "hccl"


def test_groups():
    job.run(everything, 4)


def test_misuse():
    job.run(misuse, 2)


def test_without_a_name():
    job.run(plain, 2, group=False)


def test_mismatch_in_detail_mode():
    job.run(mismatch, 2, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})


def test_missing_master_address(monkeypatch):
    for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="MASTER_ADDR expected, but not set"):
        dist.init_process_group("hccl", rank=0, world_size=1)


def test_port_in_use():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(dist.DistNetworkError, match="(?s)address already in use"):
            dist.init_process_group("hccl", init_method=address, rank=0, world_size=1)


def test_wrong_rank():
    with pytest.raises((ValueError, RuntimeError), match="rank"):
        ProcessGroupHCCL(dist.HashStore(), 2, 2, timedelta(seconds=5))


def test_a_rank_that_never_comes(monkeypatch):
    monkeypatch.setenv("HCCL_CONNECT_TIMEOUT", "1")
    began = time.monotonic()
    with pytest.raises(
        RuntimeError, match="(?s)rank 0 could not connect to the other 1 ranks.*ERR02200"
    ):
        ProcessGroupHCCL(dist.HashStore(), 0, 2, timedelta(seconds=1))
    assert time.monotonic() - began < 30


def test_wrong_options():
    with pytest.raises(TypeError, match="pg_options must be ProcessGroupHCCL.Options"):
        dist.init_process_group(
            "hccl", store=dist.HashStore(), rank=0, world_size=1, pg_options=dist.ProcessGroup.Options("x")
            if hasattr(dist.ProcessGroup, "Options") else object(),
        )  # fmt: skip
    assert not dist.is_initialized() and os.environ.get("HCCL_IF_IP") is None


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HCCL_IF_IP", "256.1.1.1"),
        ("HCCL_IF_IP", "\udcff"),
        ("HCCL_IF_IP", "a" * 5000),
        ("HCCL_SOCKET_IFNAME", "no_such_interface"),
        ("HCCL_SOCKET_IFNAME", "\udcff"),
    ],
)
def test_a_variable_that_names_no_interface(monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    with pytest.raises(
        dist.DistBackendError, match=f"(?s)HCCL: {variable} must be an .*, but is .*ERR02001"
    ) as caught:
        ProcessGroupHCCL(dist.HashStore(), 0, 1, timedelta(seconds=9))
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("variable", ["HCCL_EXEC_TIMEOUT", "HCCL_CONNECT_TIMEOUT"])
def test_a_timeout_beyond_all_numbers(monkeypatch, variable):
    """As many seconds as upstream's variable can say, which milliseconds of 64 bits hold."""
    monkeypatch.setenv(variable, "9" * 30)
    group = ProcessGroupHCCL(dist.HashStore(), 0, 1, timedelta(seconds=9))
    tensor = torch.ones(3, device="npu")
    group.allreduce([tensor]).wait()
    assert tensor.tolist() == [1.0, 1.0, 1.0]


def test_a_name_serves_again_after_its_group_ended():
    """The group that had the name before goes only when the name is given away, and asks for the table then."""
    done = run_python(
        """
        import gc
        import torch, torch_npu
        import torch.distributed as dist
        names = []
        for _ in range(3):
            dist.init_process_group("hccl", rank=0, world_size=1, store=dist.HashStore())
            names.append(dist.group.WORLD._get_backend(torch.device("npu")).get_hccl_comm_name(0))
            dist.destroy_process_group()
            gc.collect()
        assert len(set(names)) == 1, names
        """,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
