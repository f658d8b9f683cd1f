"""Collectives in graphs: traced as functional operators, run by the device's process group."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from tests.torchair.support import randn

pytestmark = pytest.mark.usefixtures("uncompiled")


@pytest.fixture
def alone(tmp_path):
    """A group of one: every collective gives back what it was given."""
    dist.init_process_group(
        "hccl", init_method=f"file://{tmp_path / 'rendezvous'}", rank=0, world_size=1
    )
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("backend", ["npu", "npugraph_ex"])
def test_collectives_enter_the_graph(uncompiled, backend):
    def f(x):
        y = x * 2
        dist.all_reduce(y)
        gathered = torch.empty_like(y)
        dist.all_gather_into_tensor(gathered, y)
        return gathered + 1

    x = randn(4)
    compiled = torch.compile(f, backend=backend, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), x * 2 + 1)
    targets = [str(node.target) for node in uncompiled[0].graph.nodes]
    assert sum("c10d_functional" in target for target in targets) == 2
