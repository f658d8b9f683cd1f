"""What the other ranks see when one dies, hangs or cannot be reached."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import torch_npu  # noqa: F401
from tests.distributed import job

LIMIT = 20


def loses_a_rank(rank: int, folder: str, kind: str) -> str:
    """Rank 1 kills itself in the middle of the job; the others must be told, and by which operation."""
    tensor = torch.ones(1 << 16, device="npu")
    dist.all_reduce(tensor)
    if rank == 1:
        Path(folder, "pid").write_text(str(os.getpid()))
        work = dist.all_reduce(tensor, async_op=True)
        os.kill(os.getpid(), signal.SIGKILL)
        work.wait()
    began = time.monotonic()
    try:
        for _ in range(1000):
            if kind == "all_reduce":
                dist.all_reduce(tensor)
            else:
                dist.recv(tensor, 1)
    except RuntimeError as error:
        took = time.monotonic() - began
        try:
            dist.all_reduce(tensor)
        except RuntimeError as later:
            return f"{took}|{type(error).__name__}|{error}|{later}"
    raise AssertionError("the loss of a rank went unnoticed")


@pytest.mark.parametrize("kind", ["all_reduce", "recv"])
def test_a_killed_rank(tmp_path, kind):
    ranks = 3 if kind == "all_reduce" else 2
    started = job.start(
        loses_a_rank, ranks, str(tmp_path), kind, env={"HCCL_EXEC_TIMEOUT": str(LIMIT)}
    )
    answers = [started[r].result(90) for r in range(ranks) if r != 1]
    assert started[1].process.wait(10) == -signal.SIGKILL
    for answer in answers:
        took, name, text, later = answer.split("|", 3)
        assert float(took) < LIMIT and name == "DistBackendError"
        assert f"HCCL {kind}" in text and "rank 1" in text and "is gone" in text
        assert "ERR02200 DIST call hccl api failed" in text
        assert "cannot be used" in later
    for rank in started:
        assert rank.process.poll() is not None


def waits_in_vain(rank: int) -> str:
    """Rank 1 does not take part: nobody dies, so only the timeout helps."""
    tensor = torch.ones(4, device="npu")
    dist.all_reduce(tensor)
    if rank == 1:
        time.sleep(12)
        return ""
    began = time.monotonic()
    with pytest.raises(
        RuntimeError, match="(?s)HCCL all_reduce .*rank 1.*does not answer"
    ) as caught:
        dist.all_reduce(tensor)
    assert time.monotonic() - began < 11
    return str(caught.value)


def test_a_hanging_rank():
    text = job.run(waits_in_vain, 2, env={"HCCL_EXEC_TIMEOUT": "6"})[0]
    assert "HCCL_EXEC_TIMEOUT" in text and "ERR02011 DIST timeout error" in text


def patience(rank: int) -> None:
    """A caller's own limit is not the group's: the operation goes on."""
    tensor = torch.ones(4, device="npu")
    if rank == 1:
        time.sleep(2)
    work = dist.all_reduce(tensor, async_op=True)
    if rank == 0:
        from datetime import timedelta

        with pytest.raises(RuntimeError, match="HCCL all_reduce: it did not end within 300 ms"):
            work.wait(timedelta(milliseconds=300))
    work.wait()
    assert tensor[0].item() == 2


def test_a_callers_patience():
    job.run(patience, 2)


def cut_off(rank: int, ranks: int, folder: str, address: str) -> str:
    """One rank in each of two network namespaces; the link between them is cut in the middle."""
    dist.init_process_group(
        "hccl", init_method=f"tcp://{address}:29611", rank=rank, world_size=ranks
    )
    tensor = torch.ones(1000, device="npu")
    dist.all_reduce(tensor)
    Path(folder, f"ready{rank}").touch()
    while not Path(folder, "cut").exists():
        time.sleep(0.1)
    began = time.monotonic()
    try:
        for _ in range(100):
            dist.all_reduce(tensor)
    except RuntimeError as error:
        assert time.monotonic() - began < LIMIT
        return str(error)
    raise AssertionError("the loss of the network went unnoticed")


def _namespaces() -> bool:
    probe = subprocess.run(
        ["ip", "netns", "add", "softnpu-probe"], capture_output=True, check=False
    ) if os.geteuid() == 0 and Path("/sbin/ip").exists() else None  # fmt: skip
    if probe is None or probe.returncode != 0:
        return False
    subprocess.run(["ip", "netns", "del", "softnpu-probe"], check=True)
    return True


@pytest.fixture
def two_hosts():
    """Network namespaces a and b, joined by a cable."""
    if not _namespaces():
        pytest.skip("network namespaces need root, iproute2 and the permission to make them")
    name = f"softnpu{os.getpid()}"
    ip = lambda *words: subprocess.run(["ip", *words], check=True)  # noqa: E731
    for side in "ab":
        ip("netns", "add", name + side)
    ip(
        "link",
        "add",
        "va",
        "netns",
        name + "a",
        "type",
        "veth",
        "peer",
        "name",
        "vb",
        "netns",
        name + "b",
    )
    for side, address in (("a", "10.99.0.1/24"), ("b", "10.99.0.2/24")):
        ip("-n", name + side, "addr", "add", address, "dev", "v" + side)
        ip("-n", name + side, "link", "set", "v" + side, "up")
        ip("-n", name + side, "link", "set", "lo", "up")
    yield name
    for side in "ab":
        ip("netns", "del", name + side)


def test_network_loss(two_hosts, tmp_path):
    started = []
    import pickle

    (tmp_path / "task").write_bytes(pickle.dumps((__name__, "cut_off", ("10.99.0.1",), False)))
    for rank, side in enumerate("ab"):
        env = {
            **os.environ, "PYTHONPATH": str(job.ROOT), "OMP_NUM_THREADS": "1", "HCCL_EXEC_TIMEOUT": "5",
            "HCCL_IF_IP": f"10.99.0.{rank + 1}",
        }  # fmt: skip
        command = [
            "ip",
            "netns",
            "exec",
            two_hosts + side,
            sys.executable,
            "-m",
            "tests.distributed.job",
        ]
        process = subprocess.Popen([*command, str(tmp_path), str(rank), "2"], cwd=job.ROOT, env=env)
        started.append(job.Rank(process, tmp_path / f"answer{rank}"))
    until = time.monotonic() + 60
    while not all((tmp_path / f"ready{r}").exists() for r in range(2)):
        assert time.monotonic() < until
        time.sleep(0.2)
    subprocess.run(["ip", "-n", two_hosts + "a", "link", "set", "va", "down"], check=True)
    (tmp_path / "cut").touch()
    for rank in started:
        text = rank.result(60)
        assert "HCCL all_reduce" in text and "DIST" in text
