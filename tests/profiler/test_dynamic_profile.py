"""torch_npu.profiler.dynamic_profile and PROF_CONFIG_PATH."""

from __future__ import annotations

import json
import os

import pytest
import torch

from tests.profiler.support import read_csv, train_step
from torch_npu.profiler import _dynamic_config as config
from torch_npu.profiler import dynamic_profile as dp
from torch_npu.profiler._non_intrusive_profile import _NonIntrusiveProfile
from torch_npu.profiler.experimental_config import AiCMetrics


def edit(path, **changes) -> None:
    """Writes the file as a user does, with a time that differs."""
    file = path / config.FILE
    values = json.loads(file.read_text("utf-8")) if file.exists() else dict(config.TEMPLATE)
    file.write_text(json.dumps({**values, "prof_dir": str(path / "out"), **changes}), "utf-8")
    stamp = os.stat(file).st_mtime_ns + 10**9
    os.utime(file, ns=(stamp, stamp))


def steps(count: int) -> None:
    for _ in range(count):
        train_step()
        dp.step()


def profiles(path) -> list:
    return sorted((path / "out").glob("*_ascend_pt")) if (path / "out").exists() else []


def test_the_template(tmp_path):
    dp.init(str(tmp_path / "new"))
    file = tmp_path / "new" / config.FILE
    assert json.loads(file.read_text("utf-8")) == config.TEMPLATE
    assert file.stat().st_mode & 0o777 == 0o640
    assert (
        config.TEMPLATE["start_step"] == 0
        and config.TEMPLATE["experimental_config"]["mstx"] is False
    )


def test_a_file_that_exists_is_kept(tmp_path):
    edit(tmp_path, active=7)
    dp.init(str(tmp_path))
    assert json.loads((tmp_path / config.FILE).read_text("utf-8"))["active"] == 7


def test_nothing_happens_without_an_edit(tmp_path):
    dp.init(str(tmp_path))
    steps(3)
    assert profiles(tmp_path) == []


def test_an_edit_starts_a_profile_at_once(tmp_path):
    dp.init(str(tmp_path))
    steps(2)
    edit(tmp_path, start_step=-1, active=2, analyse=True, metadata={"tp": 4})
    steps(4)
    (profile,) = profiles(tmp_path)
    rows = read_csv(profile / "ASCEND_PROFILER_OUTPUT/kernel_details.csv")
    assert {row["Step Id"] for row in rows} == {"3", "4"}
    assert json.loads((profile / "profiler_metadata.json").read_text("utf-8"))["tp"] == 4


def test_an_edit_names_the_step(tmp_path):
    dp.init(str(tmp_path))
    edit(tmp_path, start_step=3, warmup=1)
    steps(3)
    assert dp._state.prof is not None
    steps(2)
    assert dp._state.prof is None and len(profiles(tmp_path)) == 1


def test_a_step_that_has_passed(tmp_path, capsys):
    dp.init(str(tmp_path))
    steps(3)
    edit(tmp_path, start_step=2)
    steps(1)
    assert "step 4 has come" in capsys.readouterr().out and profiles(tmp_path) == []


def test_an_edit_during_a_profile_waits(tmp_path):
    dp.init(str(tmp_path))
    edit(tmp_path, start_step=-1, active=2)
    steps(1)
    edit(tmp_path, start_step=-1, active=1)
    steps(5)
    assert len(profiles(tmp_path)) == 2


def test_set_state_continues_a_count(tmp_path, capsys):
    dp.init(str(tmp_path))
    dp.set_state({"cur_step": 10})
    edit(tmp_path, start_step=12)
    steps(3)
    assert len(profiles(tmp_path)) == 1
    dp.set_state([1])
    dp.set_state({"cur_step": -1})
    said = capsys.readouterr().out
    assert "must be a dict" in said and "cur_step must be" in said and dp._state.cur_step == 13


def test_start_with_a_file(tmp_path, capsys):
    dp.init(str(tmp_path / "init"))
    (tmp_path / "start").mkdir()
    edit(tmp_path / "start", active=1)
    dp.start(str(tmp_path / "start" / config.FILE))
    dp.start(str(tmp_path / "start" / config.FILE))
    assert "no effect while a profile" in capsys.readouterr().out
    steps(1)
    assert len(profiles(tmp_path / "start")) == 1


def test_start_falls_back_to_the_file_of_init(tmp_path, capsys):
    dp.start()
    assert "needs a file" in capsys.readouterr().out
    dp.init(str(tmp_path))
    edit(tmp_path)
    dp.start(str(tmp_path / "nothing.json"))
    assert "config_path cannot be used" in capsys.readouterr().out
    steps(1)
    assert len(profiles(tmp_path)) == 1


@pytest.mark.parametrize(
    ("ranks", "count"), [([0], 1), ([1, 2], 0), ([], 0), ("0", 0)], ids=["chosen", "others", "empty", "wrong"]
)  # fmt: skip
def test_ranks(tmp_path, monkeypatch, ranks, count):
    monkeypatch.setenv("RANK", "0")
    dp.init(str(tmp_path))
    edit(tmp_path, start_step=-1, is_rank=True, rank_list=ranks, analyse=True)
    steps(2)
    assert len(profiles(tmp_path)) == count
    for profile in profiles(tmp_path):
        assert not (profile / "ASCEND_PROFILER_OUTPUT").exists()  # chosen ranks analyze later


def test_a_broken_file_is_told_and_logged(tmp_path, capsys):
    dp.init(str(tmp_path))
    (tmp_path / config.FILE).write_text("{", "utf-8")
    steps(1)
    assert "is not JSON" in capsys.readouterr().out
    (log,) = (tmp_path / "log").glob("monitor_dp_*_rank_-1.log")
    assert "is not JSON" in log.read_text("utf-8")
    edit_ok = {**config.TEMPLATE, "prof_dir": str(tmp_path / "out"), "start_step": -1}
    (tmp_path / config.FILE).write_text(json.dumps(edit_ok), "utf-8")
    steps(2)
    assert len(profiles(tmp_path)) == 1
    (log,) = (tmp_path / "log").glob("dp_*_rank_-1.log")
    assert "Start at step 2" in log.read_text("utf-8")


def test_permissions_and_links_are_checked(tmp_path):
    file = tmp_path / "c.json"
    file.write_text(json.dumps(config.TEMPLATE), "utf-8")
    os.chmod(file, 0o666)
    with pytest.raises(RuntimeError, match="written by everybody"):
        config.load(str(file))
    os.chmod(file, 0o640)
    if os.geteuid() == 0:  # who else could give it away
        os.chown(file, 12345, 12345)
        with pytest.raises(RuntimeError, match="belongs to user 12345"):
            config.load(str(file))
        os.chown(file, 0, 0)
    os.symlink(file, tmp_path / "link.json")
    with pytest.raises(RuntimeError, match="symbolic link"):
        config.load(str(tmp_path / "link.json"))
    with pytest.raises(RuntimeError, match="does not exist"):
        config.load(str(tmp_path / "none.json"))
    file.write_text("[]", "utf-8")
    with pytest.raises(RuntimeError, match="must hold a JSON object"):
        config.load(str(file))
    file.write_text(" " * (2 * 1024 * 1024), "utf-8")
    with pytest.raises(RuntimeError, match="has more than"):
        config.load(str(file))


@pytest.mark.parametrize(
    ("name", "wrong", "default"),
    [
        ("active", 0, 1), ("warmup", -1, 0), ("start_step", -2, 0), ("start_step", "3", 0), ("analyse", "yes", False),
        ("record_shapes", 1, False), ("prof_dir", 5, "./"), ("rank_list", {}, []), ("metadata", [], {}),
    ],
)  # fmt: skip
def test_wrong_values_are_defaults(capsys, name, wrong, default):
    assert getattr(config.parse({**config.TEMPLATE, name: wrong}), name) == default
    if name != "metadata":
        assert name in capsys.readouterr().out


def test_values_of_experimental_config():
    values = {
        "profiler_level": "Level1",
        "aic_metrics": "MemoryUB",
        "export_type": ["db"],
        "mstx": True,
    }
    chosen = config.parse({"experimental_config": values}).experimental_config
    assert chosen is not None and chosen._aic_metrics == AiCMetrics.MemoryUB
    assert chosen.export_type == ["db"] and chosen.tx_enabled and chosen._profiler_level == "Level1"
    assert config.parse({}).experimental_config is None


def test_activities_of_the_file(capsys):
    assert [a.name for a in config.parse({"activities": ["npu", "GPU"]}).activities] == ["NPU"]
    assert "'GPU' is given" in capsys.readouterr().out


def test_misuse_is_told(tmp_path, capsys):
    dp.step()
    dp.init(3)
    dp.init(str(tmp_path))
    dp.init(str(tmp_path))
    said = capsys.readouterr().out
    assert (
        "before dynamic_profile.init" in said
        and "must be a str" in said
        and "initialized already" in said
    )


def test_the_environment_variable_counts_the_optimizers_steps(tmp_path, monkeypatch):
    monkeypatch.setenv("PROF_CONFIG_PATH", str(tmp_path))
    _NonIntrusiveProfile.init()
    weights = [torch.nn.Parameter(torch.ones(2, device="npu")) for _ in range(2)]
    first, second = (torch.optim.SGD([w], lr=0.1) for w in weights)
    for number in range(4):
        if number == 1:
            edit(tmp_path, start_step=-1)
        for optimizer, weight in ((first, weights[0]), (second, weights[1])):
            weight.grad = torch.ones_like(weight)
            optimizer.step()
    assert dp._state.cur_step == 4  # of one optimizer, not of both
    assert len(profiles(tmp_path)) == 1


def test_a_wrong_variable_is_told(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setenv("PROF_CONFIG_PATH", str(tmp_path / "file"))
    monkeypatch.setenv("MSMONITOR_USE_DAEMON", "1")
    _NonIntrusiveProfile.init()
    said = capsys.readouterr().out
    assert (
        "PROF_CONFIG_PATH cannot be used" in said
        and "dynolog" in said
        and _NonIntrusiveProfile._handle is None
    )
