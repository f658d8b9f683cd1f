"""Collectives in graphs: traced as functional operators, run by the device's process group."""

from __future__ import annotations

import json

import pytest
import torch
import torch.distributed as dist

import torchair
from tests.torchair.support import randn
from torchair.ge.interpreter import load

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


@pytest.mark.usefixtures("alone")
def test_export_with_collectives(tmp_path):
    """Each rank has its own model; rank 0 writes templates of ATC's configuration."""

    class Model(torch.nn.Module):
        def forward(self, x):
            y = x + 1
            dist.all_reduce(y)
            return y

    config = torchair.CompilerConfig()
    config.export.experimental.auto_atc_config_generated = True
    folder = tmp_path / "out"
    torchair.dynamo_export(
        randn(4), model=Model(), export_path=str(folder), export_name="m", config=config
    )
    assert {f.name for f in folder.iterdir()} == {
        "m0.air", "rank_0", "model_relation_config.json", "numa_config.json"
    }  # fmt: skip
    relation = json.loads((folder / "model_relation_config.json").read_text())
    (collective,) = [op for op in load(str(folder / "m0.air")).op if op.type == "HcomAllReduce"]
    group = collective.attr["group_name"].s.decode()
    assert relation["comm_group"] == [{"group_name": group, "group_rank_list": "[0]"}]
    assert relation["deploy_config"] == [{"submodel_name": "m0", "deploy_device_id_list": "0:0:0"}]
    numa = json.loads((folder / "numa_config.json").read_text())
    assert numa["cluster"][0]["cluster_nodes"][0]["item_list"] == [{"item_id": 0}]
