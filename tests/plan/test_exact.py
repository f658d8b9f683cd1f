"""A run for shapes alone does to memory what the real run does: the same allocations in the same order."""

from __future__ import annotations

import json
import socket

import pytest

from tests import forking

PROGRAMS = ["cnn", "lstm", "transformer", "moe", "llama", "decode", "graph"]


def _memory(done: forking.Done) -> dict:
    assert done.returncode == 0, done.stderr
    (line,) = [text for text in done.stdout.splitlines() if text.startswith("MEMORY ")]
    return json.loads(line.removeprefix("MEMORY "))


def _same(real: dict, planned: dict) -> None:
    for number, (one, other) in enumerate(zip(real["order"], planned["order"], strict=False)):
        assert one == other, f"event {number} differs"
    assert planned == real


@pytest.mark.parametrize("name", PROGRAMS)
def test_allocations_are_those_of_the_real_run(name, tmp_path):
    text = f"from tests.plan import models\nmodels.report({name!r})"
    real, planned = forking.programs(tmp_path, text, [{"PLAN": "0"}, {"PLAN": "1"}])
    _same(_memory(real), _memory(planned))


def test_one_rank_without_peers_allocates_as_among_two(tmp_path):
    text = "from tests.plan import models\nmodels.report('fsdp')"
    ranks = [
        {"PLAN": "0", "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
        for rank in range(2)
    ]
    ranks.append({**ranks[0], "PLAN": "1"})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    first, _, planned = forking.programs(tmp_path, text, [{**rank, **meet} for rank in ranks])
    _same(_memory(first), _memory(planned))
