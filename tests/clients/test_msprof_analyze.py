"""msprof-analyze: every recipe for a cluster ends on the profiles of two ranks, and their tables have rows."""

from __future__ import annotations

import sqlite3

import pytest

from tests.clients.launch import PROGRAMS, tool

pytest.importorskip("msprof_analyze", reason="msprof-analyze is not installed")

#: recipes, and the tables that they must have filled for this run; those without one find no data of their kind in it
RECIPES = {
    "all": ("ClusterStepTraceTime",),
    "cann_api_sum": ("CannApiSum",),
    "cluster_time_summary": ("ClusterTimeSummary",),
    "communication_group_map": ("CommunicationGroupMapping",),
    "communication_matrix_sum": (),
    "communication_time_sum": (),
    "compute_op_sum": ("ComputeOpAllRankStats",),
    "ep_load_balance": (),
    "free_analysis": (),
    "freq_analysis": (),
    "hccl_sum": ("HcclAllRankStats",),
    "mstx_sum": (),
    "p2p_pairing": (),
    "pp_chart": (),
    "slow_link": (),
    "slow_rank": (),
}


@pytest.fixture(scope="module")
def profiles(tmp_path_factory):
    folder = tmp_path_factory.mktemp("profiles")
    tool(
        "torchrun",
        "--nproc-per-node=2",
        "--master-port=29617",
        PROGRAMS / "profile_ranks.py",
        folder,
    )
    assert len(list(folder.glob("*_ascend_pt"))) == 2
    return folder


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe(profiles, tmp_path, recipe):
    command = ("cluster", "-m", recipe, "-d", profiles, "-o", tmp_path, "--export_type", "db")
    said = tool("msprof-analyze", *command)
    assert "Traceback" not in said, said
    for name in RECIPES[recipe]:
        (file,) = tmp_path.rglob("cluster_analysis.db")
        with sqlite3.connect(file) as database:
            (count,) = database.execute(f"select count(*) from {name}").fetchone()
        assert count > 0, name
