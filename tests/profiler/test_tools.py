"""The tools of the field open what the profiler writes; their packages (msprof-analyze, perfetto) are optional."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import torch_npu.profiler as prof
from tests.profiler.perfetto import ask
from tests.profiler.support import (
    communication,
    make_profile,
    outputs,
    query,
    read_trace,
    rows,
    train_step,
)
from tests.profiler.timeline import check_timeline
from torch_npu.profiler import _analyse


def tool(name: str) -> str:
    """The command of an optional package."""
    found = shutil.which(name, path=os.path.dirname(sys.executable)) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def ranks(path: Path, count: int) -> Path:
    """Profiles of a run with `count` ranks, analyzed."""
    for rank in range(count):
        data = rows()
        data["communication"] = [
            communication("allReduce", base + 470 + rank, base + 570, rank=rank)
            for base in (0, 1000)
        ]
        made = make_profile(path / str(rank), data, profiler_level="Level1", rank=rank)
        place = path / f"worker{rank}_{rank}_20240101000000000_ascend_pt"
        made.rename(place)
        (path / str(rank)).rmdir()
        group = {
            "group_name": "default_group",
            "group_rank": rank,
            "global_ranks": list(range(count)),
        }
        metadata = {"parallel_group_info": {"group_0": group}}
        (place / "profiler_metadata.json").write_text(json.dumps(metadata), "utf-8")
    _analyse.many(str(path), 1, None)
    return path


def run(*arguments: str | Path) -> str:
    done = subprocess.run(
        [str(a) for a in arguments], capture_output=True, text=True, timeout=300, check=False
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "[ERROR]" not in said and "Traceback" not in said, said
    return said


def test_advisor(tmp_path):
    command = tool("msprof-analyze")
    (profile,) = ranks(tmp_path / "run", 1).iterdir()
    said = run(command, "advisor", "all", "-d", profile, "-o", tmp_path / "out")
    assert "1.43ms" in said and list((tmp_path / "out").rglob("*.html"))


def test_cluster(tmp_path):
    command = tool("msprof-analyze")
    run(command, "cluster", "-d", ranks(tmp_path / "run", 4), "-m", "all", "-o", tmp_path / "out")
    (db,) = (tmp_path / "out").rglob("cluster_analysis.db")
    assert query(db, "select count(*) from ClusterStepTraceTime where type = 'rank'") == [(8,)]
    assert query(db, "select distinct computing from ClusterStepTraceTime") == [(240,)]
    assert query(db, "select count(distinct rank_id) from ClusterCommunicationTime") == [(4,)]
    assert query(db, "select count(*) from ClusterCommunicationMatrix")[0][0] > 0


def test_compare(tmp_path):
    command = tool("msprof-analyze")
    one, two = sorted(ranks(tmp_path / "run", 2).iterdir())
    said = run(command, "compare", "-d", one, "-bp", two, "-o", tmp_path / "out")
    assert "Computing Time" in said and list((tmp_path / "out").rglob("*.xlsx"))


WRONG = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"


def test_perfetto(tmp_path):
    (profile,) = ranks(tmp_path, 1).iterdir()
    trace = profile / "ASCEND_PROFILER_OUTPUT/trace_view.json"
    wrong, spans, flows, links = ask(
        trace,
        WRONG,
        "select count(*) as n, min(dur) as least from slice",
        "select count(*) as n from flow",
        "select a.category as a, b.category as b, count(*) as n from flow join slice a on a.id = slice_out "
        "join slice b on b.id = slice_in group by 1, 2",
    )
    events = read_trace(trace)
    assert wrong == []
    assert spans == [{"n": sum(e["ph"] == "X" for e in events), "least": 0}]
    assert flows == [{"n": sum(check_timeline(events).values())}]
    assert {(row["a"], row["b"]) for row in links} == {
        ("cpu_op", "kernel"), ("enqueue", "dequeue"), ("cpu_op", "cpu_op"), ("cann", "kernel"), ("mstx", "mstx"),
    }  # fmt: skip


def test_perfetto_drops_nothing_of_a_real_run(tmp_path):
    """Hundreds of Python calls, whose ends are nanoseconds apart."""
    steps = prof.schedule(wait=0, warmup=0, active=2, repeat=1)
    with prof.profile(
        schedule=steps, on_trace_ready=prof.tensorboard_trace_handler(str(tmp_path)), with_stack=True
    ) as profiler:  # fmt: skip
        for _ in range(2):
            train_step()
            profiler.step()
    trace = outputs(tmp_path) / "trace_view.json"
    wrong, spans = ask(trace, WRONG, "select count(*) as n from slice where dur >= 0")
    assert wrong == [] and spans == [{"n": sum(e["ph"] == "X" for e in read_trace(trace))}]


def test_tensorboard(tmp_path):
    """The plugin that the field has for TensorBoard (torch-tb-profiler-ascend) finds the profiles and makes its views."""
    loader = pytest.importorskip("torch_tb_profiler.profiler.loader")
    from torch_tb_profiler import io

    ranks(tmp_path, 2)
    found = loader.RunLoader("run", str(tmp_path), io.Cache(), "Ascend").load()
    views = {
        profile.worker: {view.display_name for view in profile.views}
        for profile in found.profiles.values()
    }
    single = {"Operator", "Kernel", "Memory", "Trace"}
    assert views == {"worker0_0": single, "worker1_1": single, "All": {"Distributed"}}
