"""The tools of the field open what the profiler writes; their packages (msprof-analyze, perfetto) are optional."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.profiler.support import communication, make_profile, query, rows
from torch_npu.profiler import _analyse


def tool(name: str) -> str:
    """The command of an optional package."""
    found = shutil.which(name, path=os.path.dirname(sys.executable)) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def ranks(path: Path, count: int) -> Path:
    """Profiles of a run with `count` ranks, analysed."""
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


def test_perfetto(tmp_path):
    """Its trace_processor is a program that the package downloads at its first use."""
    if importlib.util.find_spec("perfetto") is None:
        pytest.skip("perfetto is not installed")
    from perfetto.trace_processor import TraceProcessor

    (profile,) = ranks(tmp_path, 1).iterdir()
    try:
        processor = TraceProcessor(trace=str(profile / "ASCEND_PROFILER_OUTPUT/trace_view.json"))
    except (OSError, subprocess.CalledProcessError) as offline:
        pytest.skip(f"perfetto's trace_processor cannot be had: {offline}")
    with processor:
        assert next(processor.query("select count(*) as n from slice where dur < 0")).n == 0
        assert next(processor.query("select count(*) as n from flow")).n >= 4
        wrong = "select sum(value) as n from stats where severity = 'error'"
        assert next(processor.query(wrong)).n == 0
