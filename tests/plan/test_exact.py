"""A run for shapes alone does to memory what the real run does: the peaks, and each allocation in its order."""

from __future__ import annotations

import json
import socket

import pytest

from tests import forking
from tests.device.process import output
from tests.plan import models


def _memory(done: forking.Done) -> dict:
    assert done.returncode == 0, done.stderr
    (line,) = [text for text in done.stdout.splitlines() if text.startswith("MEMORY ")]
    return json.loads(line.removeprefix("MEMORY "))


def _ordered(events: list[list]) -> list[list]:
    """The allocator's events. Releases without an allocation between them are sorted: PyTorch's caches (autocast's, say) are
    hash tables of addresses, and two real runs empty them in different orders."""
    found: list[list] = []
    releases: list[list] = []
    for event in events:
        if event[0].startswith("free"):
            releases.append(event)
            continue
        found += [*sorted(releases), event]
        releases = []
    return found + sorted(releases)


def _compare_peaks(real: dict, planned: dict) -> None:
    assert planned["allocated"] == real["allocated"]
    assert planned["reserved"] == real["reserved"]
    assert len(real["events"]) > 30


def _compare(real: dict, planned: dict) -> None:
    _compare_peaks(real, planned)
    assert _ordered(planned["events"]) == _ordered(real["events"])


def _compare_with_collectives(real: dict, planned: dict) -> None:
    """Allocations in their order, and the same releases: the thread of a real collective lets go of its buffers a moment after
    the wait for it has ended, so that two real runs differ in when some of them are released."""
    _compare_peaks(real, planned)

    def split(events: list[list]) -> tuple[list[list], list[list]]:
        releases = [event for event in events if event[0].startswith("free")]
        return [event for event in events if not event[0].startswith("free")], sorted(releases)

    assert split(planned["events"]) == split(real["events"])


@pytest.mark.parametrize("name", [one for one in models.PROGRAMS if one != "fsdp2"])
def test_allocations_are_those_of_the_real_run(tmp_path, name):
    text = f"from tests.plan import models\nmodels.report({name!r})"
    _compare(*map(_memory, forking.programs(tmp_path, text, [{"PLAN": "0"}, {"PLAN": "1"}])))


def test_allocations_of_a_sharded_rank_are_those_of_two_real_ranks(tmp_path):
    """FSDP2 on two processes that talk to each other, and on each of the two ranks alone."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    runs = [shared | {"RANK": rank, "PLAN": plan} for plan in "01" for rank in "01"]
    text = "from tests.plan import models\nmodels.report('fsdp2')"
    first, second, *alone = map(_memory, forking.programs(tmp_path, text, runs))
    _compare_with_collectives(first, alone[0])
    _compare_with_collectives(second, alone[1])


def test_a_model_that_does_not_fit_here():
    """A step of Llama 70B on one of 8 ranks: some 80 GiB of device memory, and next to nothing of the host's."""
    text = """
        import re
        from tests.plan import models
        models.report("llama_70b")
        status = open("/proc/self/status").read()  # ru_maxrss would count what the parent had when it forked
        print("HOST", int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) // 1024)
    """
    said = output(text, PLAN="1", SOFTNPU_MEMORY="256GiB", SOFTNPU_QUIET="1").splitlines()
    memory = json.loads(next(line for line in said if line.startswith("MEMORY ")).split(" ", 1)[1])
    assert 70 * 2**30 < memory["allocated"] < 100 * 2**30
    assert int(said[-1].removeprefix("HOST ")) < 2048
