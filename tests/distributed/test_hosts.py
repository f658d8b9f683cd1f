"""Several hosts, as network namespaces that a cable joins: torchrun, and the loss of the network."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import torch_npu
from tests.distributed import job

LIMIT = 8
CLONE_NEWNET = 0x40000000


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def hosts():
    """Two network namespaces; rank r's host is called hosts(r), its address is 10.99.0.(r + 1)."""
    name = f"softnpu{os.getpid()}"
    try:
        ip("netns", "add", name + "0")
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network namespaces here: they need root and iproute2 ({error})")
    try:
        ip("netns", "add", name + "1")
        ip("-n", name + "0", "link", "add", "v", "type", "veth", "peer", "v", "netns", name + "1")
        for side in "01":
            ip("-n", name + side, "addr", "add", f"10.99.0.{int(side) + 1}/24", "dev", "v")
            ip("-n", name + side, "link", "set", "v", "up")
            ip("-n", name + side, "link", "set", "lo", "up")
        yield lambda host: f"{name}{host}"
    finally:
        for side in "01":
            subprocess.run(["ip", "netns", "del", name + side], check=False, capture_output=True)


def move_to(namespace: str) -> None:
    """This process, which has no other threads yet, sees the network of that host."""
    with open(f"/var/run/netns/{namespace}") as handle:
        if ctypes.CDLL(None, use_errno=True).setns(handle.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"setns {namespace}")


def cut_off(rank: int, ranks: int, folder: str, namespaces: list[str]) -> tuple[float, str, str]:
    """Ranks 0 and 1 on one host, rank 2 on another; the cable is cut in the middle of an all_reduce."""
    host = rank // 2
    move_to(namespaces[host])
    os.environ["HCCL_IF_IP"] = f"10.99.0.{host + 1}"
    dist.init_process_group(
        "hccl", init_method="tcp://10.99.0.1:29611", rank=rank, world_size=ranks
    )
    tensor = torch.ones(1000, device="npu")
    dist.all_reduce(tensor)
    assert tensor[0].item() == ranks
    Path(folder, f"ready{rank}").touch()
    try:
        while True:
            dist.all_reduce(tensor.fill_(1.0))
    except RuntimeError as error:
        when = time.monotonic()
        with pytest.raises(RuntimeError, match="cannot be used, since the group failed") as later:
            dist.all_reduce(tensor)
        return when, str(error), str(later.value)


def wait_for(files: list[Path], limit: float = 100) -> None:
    until = time.monotonic() + limit
    while not all(file.exists() for file in files):
        assert time.monotonic() < until, f"not all of {files} came"
        time.sleep(0.1)


def test_network_loss(hosts: Callable[[int], str]):
    names = [hosts(0), hosts(1)]
    started = job.start(cut_off, 3, names, group=False, env={"HCCL_EXEC_TIMEOUT": str(LIMIT)})
    try:
        folder = started[0].answer.parent
        wait_for([folder / f"ready{rank}" for rank in range(3)])
        ip("-n", names[0], "link", "set", "v", "down")
        cut = time.monotonic()
        answers = [rank.result(60) for rank in started]
    finally:
        job.stop(started)
    for rank, (when, text, _) in enumerate(answers):
        assert when - cut < LIMIT + 1, f"rank {rank} was told after {when - cut:.1f} s"
        assert "HCCL all_reduce" in text and "DIST" in text
        assert (
            "rank 2 (pid" in text if rank < 2 else "rank 0 (pid" in text and "rank 1 (pid" in text
        )


def worker(folder: str) -> None:
    """What torchrun starts on each host."""
    rank = int(os.environ["RANK"])
    torch_npu.npu.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("hccl")
    tensor = torch.full((5,), float(rank), device="npu")
    dist.all_reduce(tensor)
    got = torch.empty(dist.get_world_size(), device="npu")
    dist.all_to_all_single(got, torch.arange(len(got), device="npu") * 10.0 + rank)
    Path(folder, f"rank{rank}").write_text(f"{tensor.tolist()} {got.tolist()}")
    dist.destroy_process_group()


@pytest.mark.slow
def test_torchrun_on_two_hosts(hosts: Callable[[int], str], tmp_path: Path):
    launchers = []
    for host in range(2):
        command = [
            "ip", "netns", "exec", hosts(host), sys.executable, "-m", "torch.distributed.run", "--nnodes", "2",
            "--node_rank", str(host), "--nproc_per_node", "2", "--master_addr", "10.99.0.1",
            "--master_port", "29612", "-m", "tests.distributed.test_hosts", str(tmp_path),
        ]  # fmt: skip
        env = job.environment_with({"HCCL_SOCKET_IFNAME": "v"})
        launchers.append(subprocess.Popen(command, cwd=job.ROOT, env=env))
    try:
        assert [launcher.wait(240) for launcher in launchers] == [0, 0]
    finally:
        for launcher in launchers:
            launcher.kill()
            launcher.wait()
    for rank in range(4):
        want = f"{[6.0] * 5} {[rank * 10.0 + r for r in range(4)]}"
        assert (tmp_path / f"rank{rank}").read_text() == want


if __name__ == "__main__":
    worker(sys.argv[1])
