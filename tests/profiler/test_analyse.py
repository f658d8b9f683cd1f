"""torch_npu.profiler.profiler.analyse: offline, in parallel, after a crash, beside the program."""

from __future__ import annotations

import os

import pytest

from tests.forking import program, programs
from tests.profiler.support import make_profile, outputs, read_csv, read_trace, rows, train_step
from torch_npu.profiler import _analyse, _raw, profile, tensorboard_trace_handler
from torch_npu.profiler.profiler import analyse


def test_many_profiles_in_parallel(tmp_path, capfd):
    for name in ("a", "b"):
        make_profile(tmp_path / name).rename(tmp_path / f"{name}_ascend_pt")
    analyse(str(tmp_path), max_process_number=2)
    for name in ("a", "b"):
        assert (tmp_path / f"{name}_ascend_pt/ASCEND_PROFILER_OUTPUT/trace_view.json").exists()
    assert "2/2 profiles analyzed" in capfd.readouterr().err


def test_one_profile_by_its_own_path_and_logs(tmp_path, capfd):
    made = make_profile(tmp_path)
    analyse(str(made), max_process_number=1)
    assert "1/1 profiles analyzed" in capfd.readouterr().err
    (log,) = (made / "logs").glob("profiler_*.log")
    assert "trace_view" in log.read_text("utf-8")


@pytest.mark.parametrize("export_type", ["db", ["db"]])
def test_the_export_type_can_be_chosen(tmp_path, export_type):
    make_profile(tmp_path)
    analyse(str(tmp_path), 1, export_type)
    found = {file.name for file in outputs(tmp_path).iterdir()}
    assert found == {"analyse.done", "analysis.db", "ascend_pytorch_profiler.db"}


def test_an_analysis_replaces_the_one_before(tmp_path):
    make_profile(tmp_path)
    analyse(str(tmp_path), 1, ["text"])
    analyse(str(tmp_path), 1, ["db"])
    assert not (outputs(tmp_path) / "trace_view.json").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"max_process_number": 0}, "Invalid parameter max_process_number: 0"),
        ({"max_process_number": "2"}, "Invalid parameter max_process_number: '2'"),
        ({"max_process_number": 10**6}, "more than the"),
        ({"export_type": "xml"}, "Invalid parameter export_type: 'xml'"),
        ({"export_type": []}, "Invalid parameter export_type: []"),
        ({"export_type": 3}, "Invalid parameter export_type: 3"),
    ],
)
def test_wrong_arguments_are_told(tmp_path, capsys, arguments, said):
    make_profile(tmp_path)
    analyse(str(tmp_path), **arguments)
    assert said in capsys.readouterr().out and (outputs(tmp_path) / "trace_view.json").exists()


def test_wrong_paths_are_told(tmp_path, capsys):
    analyse(str(tmp_path / "nothing"))
    analyse(str(tmp_path))
    said = capsys.readouterr().out
    assert "does not exist" in said and "There is no profile" in said


def test_a_file_that_was_cut_short(tmp_path, capsys):
    made = make_profile(tmp_path)
    (file,) = made.glob("PROF_*/device_0/task.jsonl")
    with open(file, "a", encoding="utf-8") as out:
        out.write('[["aten::mul", 0, 2, 40')
    analyse(str(tmp_path))
    assert "task.jsonl was cut short" in capsys.readouterr().out
    assert len(read_csv(outputs(tmp_path) / "task_time.csv")) == 4


def test_a_writer_that_fails_leaves_the_others(tmp_path, capsys):
    data = rows()
    data["memory"] = [["unheard of", 1, 2, 3, 0, 5]]
    made = make_profile(tmp_path, data)
    analyse(str(tmp_path))
    assert "memory_record failed" in capsys.readouterr().out
    assert (outputs(tmp_path) / "kernel_details.csv").exists()
    (log,) = (made / "logs").iterdir()
    assert "Traceback" in log.read_text("utf-8")


def test_links_of_a_profile_lead_nowhere(tmp_path):
    """A profile of somebody else, with a link where the folder of the device should be: what it leads to stays."""
    made = make_profile(tmp_path / "run")
    home = tmp_path / "home"
    (home / "papers").mkdir(parents=True)
    (home / "letter").write_text("dear", "utf-8")
    (made / "PROF_000002").symlink_to(home)
    (made / "ASCEND_PROFILER_OUTPUT").symlink_to(home)
    analyse(str(tmp_path / "run"))
    assert (home / "papers").is_dir() and [p.name for p in home.iterdir() if p.is_file()] == [
        "letter"
    ]
    assert (outputs(tmp_path / "run") / "trace_view.json").exists()


@pytest.mark.parametrize(
    "content",
    ["1\n", "[1]\n", '{"a": 1}\n', "[" * 100_000, '[["x"]]\n', "\xff\n", "[[[]]]\n", "[[null]]\n"],
)
def test_raw_data_that_no_profiler_wrote(tmp_path, capsys, content):
    """Each of the files in turn: the analysis ends, and says what it could not use."""
    made = make_profile(tmp_path)
    files = [f for f in made.rglob("*.json*") if f.name.endswith(("jsonl", "json"))]
    assert len(files) > 5
    for file in files:
        before = file.read_bytes()
        file.write_text(content, "latin-1")
        analyse(str(tmp_path), export_type="text")
        said = capsys.readouterr().out
        assert "Analyzed" in said
        assert f"{file.name} was cut short" in said or " failed: " in said or content[:2] == '{"'
        file.write_bytes(before)


def test_a_pipe_in_a_profile(tmp_path):
    made = make_profile(tmp_path)
    (file,) = made.glob("PROF_*/device_0/task.jsonl")
    file.unlink()
    os.mkfifo(file)
    analyse(str(tmp_path), export_type="text")
    assert (outputs(tmp_path) / "trace_view.json").exists()


CRASH = """
    import signal, time
    from torch_npu.profiler import profile, schedule, tensorboard_trace_handler
    with profile(schedule=schedule(wait=0, active=9, repeat=1), on_trace_ready=tensorboard_trace_handler("out")) as prof:
        for _ in range(3):
            x = torch.ones(8, 8, device="npu")
            (x @ x).exp()
            time.sleep(0.6)
            prof.step()
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_crash_leaves_raw_data(tmp_path):
    done = program(tmp_path, CRASH)
    assert done.returncode == -9, done.stderr
    analyse(str(tmp_path / "out"), 1)
    out = outputs(tmp_path / "out")
    kernels = read_csv(out / "kernel_details.csv")
    assert sum("MatMulV2" in row["Name"] for row in kernels) == 3
    assert [row["Step"] for row in read_csv(out / "step_trace_time.csv")] == ["0", "1", "2"]
    assert any("MatMulV2" in e["name"] for e in read_trace(out / "trace_view.json"))
    host = [row["Name"] for row in read_csv(out / "operator_details.csv")]
    assert host.count("aten::mm") == 2  # written after the second step, a second after the start


def test_two_ranks_profile_at_once(tmp_path):
    text = """
        from torch_npu.profiler import profile, tensorboard_trace_handler
        with profile(on_trace_ready=tensorboard_trace_handler("out")):
            for _ in range(int(os.environ["RANK"]) + 2):
                x = torch.ones(8, 8, device="npu")
                x @ x
    """
    done = programs(tmp_path, text, [{"RANK": "0"}, {"RANK": "1"}])
    assert [one.returncode for one in done] == [0, 0], done
    for rank in ("0", "1"):
        (db,) = tmp_path.glob(f"out/*/ASCEND_PROFILER_OUTPUT/ascend_pytorch_profiler_{rank}.db")
        kernels = read_csv(db.with_name("kernel_details.csv"))
        assert sum("MatMulV2" in row["Name"] for row in kernels) == int(rank) + 2


def test_async_mode_analyses_beside_the_program(tmp_path):
    with profile(on_trace_ready=tensorboard_trace_handler(str(tmp_path), async_mode=True)):
        train_step()
    assert _analyse._pending
    _analyse._wait()
    assert (outputs(tmp_path) / "analyse.done").exists()


@pytest.mark.parametrize(("simplify", "kept"), [(True, False), (False, True)])
def test_data_simplification_removes_what_tools_made_of_raw_data(tmp_path, simplify, kept):
    made = make_profile(tmp_path, data_simplification=simplify)
    (raw,) = made.glob("PROF_*")
    (raw / "mindstudio_profiler_output").mkdir()
    (raw / "mindstudio_profiler_output" / "op_summary.csv").touch()
    (raw / "msprof.db").touch()
    analyse(str(tmp_path))
    found = {entry.name for entry in raw.iterdir()} - {"host", "device_0"}
    assert found == ({"mindstudio_profiler_output", "msprof.db"} if kept else set())
    assert (raw / "device_0" / "task.jsonl").exists()


def test_files_are_private(tmp_path):
    made = make_profile(tmp_path)
    analyse(str(tmp_path))
    for file in [*outputs(tmp_path).iterdir(), *(made / _raw.FRAMEWORK).iterdir()]:
        assert file.stat().st_mode & 0o007 == 0, file
