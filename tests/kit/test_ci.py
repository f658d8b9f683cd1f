"""The files for CI: their shell steps run here, with a pip that writes down what it is asked for."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests import PYTHONPATH, ROOT

PROJECT = """
import pytest, torch, torch_npu

def test_of_the_project():
    x = torch.ones(2, 8, device="npu")
    assert torch_npu.npu_rms_norm(x, x[0])[0].shape == (2, 8)
"""

PYTHON = """#!/bin/sh
if [ "$1 $2" = "-m pip" ]; then
  shift 2
  printf '%s\\n' "$*" >> "$PIP_LOG"
  if [ "$1" = wheel ]; then
    while [ "$1" != --wheel-dir ]; do shift; done
    mkdir -p "$2" && touch "$2/softnpu-0-py3-none-any.whl"
  fi
  exit 0
fi
exec {python} "$@"
"""


@pytest.fixture
def machine(tmp_path):
    """A project, and a PATH whose python and softnpu are this environment's."""
    (tmp_path / "bin").mkdir()
    for name, text in (
        ("python", PYTHON.replace("{python}", shlex.quote(sys.executable))),
        ("softnpu", f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m softnpu "$@"\n'),
    ):
        file = tmp_path / "bin" / name
        file.write_text(text)
        file.chmod(0o755)
    project = tmp_path / "project"
    (project / "tests").mkdir(parents=True)
    (project / "tests" / "test_it.py").write_text(PROJECT)
    (project / "requirements.txt").write_text("")
    return Machine(tmp_path)


class Machine:
    def __init__(self, path: Path) -> None:
        self.path, self.project = path, path / "project"
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("SOFTNPU")},
            "PATH": f"{path / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join([PYTHONPATH, os.environ.get("PYTHONPATH", "")]),
            # As if installed: where the entry point is there too, it is the same plugin.
            "PYTEST_ADDOPTS": "-p softnpu.pytest_plugin",
            "HOME": str(path),
            "PIP_LOG": str(path / "pip.txt"),
            "GITHUB_ENV": str(path / "env.txt"),
            "GITHUB_OUTPUT": str(path / "output.txt"),
        }

    def shell(self, script: str, **variables: str) -> str:
        done = subprocess.run(
            ["bash", "-eo", "pipefail", "-c", script],
            cwd=self.project, env={**self.environment, **variables}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        return done.stdout

    def pip(self) -> list[str]:
        return (self.path / "pip.txt").read_text().splitlines()

    def read(self, name: str) -> dict[str, str]:
        lines = (self.path / name).read_text().splitlines()
        return dict(line.split("=", 1) for line in lines)


def read(path: Path) -> dict:
    return yaml.safe_load(path.read_text("utf-8"))


def value(text: str, known: dict[str, str]) -> str:
    """GitHub's expressions, as far as these files use them: names, and `a || b`."""

    def one(match: re.Match[str]) -> str:
        words = [word.strip() for word in match[1].split("||")]
        assert all(word in known for word in words), f"who knows {match[0]}?"
        return next((known[word] for word in words if known[word]), "")

    return re.sub(r"\$\{\{(.*?)\}\}", one, str(text))


ACTION = read(ROOT / "action.yml")


def run_action(machine: Machine, hit: str = "", **given: str) -> None:
    inputs = {f"inputs.{k}": str(v["default"]) for k, v in ACTION["inputs"].items()}
    unknown = {f"inputs.{k}" for k in given} - set(inputs)
    assert not unknown, f"the action has no {unknown}"
    known = {
        **inputs,
        **{f"inputs.{k}": v for k, v in given.items()},
        "github.action_path": str(ROOT),
    }
    for step in ACTION["runs"]["steps"]:
        if "run" not in step:
            assert (
                step["uses"] == "actions/cache@v4"
                and "steps.key.outputs.key" in step["with"]["key"]
            )
            continue
        assert step["shell"] == "bash" and "${{" not in step["run"], (
            "inputs reach the shell by variables alone"
        )
        if step.get("if") == "steps.wheel.outputs.cache-hit != 'true'" and hit:
            continue
        variables = {k: value(v, known) for k, v in step.get("env", {}).items()}
        machine.shell(step["run"], **variables)
        if (machine.path / "env.txt").exists():
            machine.environment.update(machine.read("env.txt"))


def test_the_action_builds_once_installs_and_chooses_the_chip(machine):
    run_action(machine, soc="Ascend310P3", devices="2", memory="4GiB")
    assert machine.read("env.txt") == {
        "SOFTNPU_SOC": "Ascend310P3",
        "SOFTNPU_DEVICES": "2",
        "SOFTNPU_MEMORY": "4GiB",
    }
    asked = machine.pip()
    assert any(line.startswith("wheel --no-build-isolation --no-deps") for line in asked)
    removed = asked.index("uninstall --yes torch-npu")
    assert asked[removed + 1].endswith("softnpu-0-py3-none-any.whl"), "in place of torch_npu"
    key = machine.read("output.txt")["key"]
    assert re.fullmatch(r"softnpu-Linux-\w+-cp3\d+-torch2\.13\.0-[0-9a-f]{16}", key)
    torch = re.search(r"or \$\(PINNED\),([\d.]+)", (ROOT / "Makefile").read_text("utf-8"))
    assert torch and ACTION["inputs"]["torch"]["default"] == torch[1]


def test_the_workflow_for_github(machine):
    """With the wheel from the cache, the steps of the job after the action's."""
    (job,) = read(ROOT / "examples/ci/github-actions.yml")["jobs"].values()
    uses = [step for step in job["steps"] if "softnpu" in step.get("uses", "")]
    assert len(uses) == 1 and set(uses[0]["with"]) <= set(ACTION["inputs"])
    (machine.path / ".cache/softnpu-wheel").mkdir(parents=True)
    (machine.path / ".cache/softnpu-wheel/softnpu-1-py3-none-any.whl").touch()
    known = {"matrix.soc": job["strategy"]["matrix"]["soc"][0]}
    run_action(machine, hit="true", **{k: value(v, known) for k, v in uses[0]["with"].items()})
    assert not any(line.startswith("wheel") for line in machine.pip())
    said = [machine.shell(step["run"]) for step in job["steps"] if "run" in step]
    assert "NPU summary (Ascend910B3, emulated)" in said[-1] and "1 passed" in said[-1]


def test_the_job_for_gitlab(machine):
    (job,) = read(ROOT / "examples/ci/gitlab-ci.yml").values()
    (matrix,) = job["parallel"]["matrix"]
    variables = {k: str(v) for k, v in job["variables"].items() if k != "PIP_CACHE_DIR"}
    script = "\n".join([*job["before_script"], *job["script"]])
    said = machine.shell(script, **variables, SOFTNPU_SOC=matrix["SOFTNPU_SOC"][1])
    assert "NPU summary (Ascend310P3, emulated)" in said
    assert (machine.project / job["artifacts"]["reports"]["junit"]).exists()
    assert sum(line.startswith("wheel") for line in machine.pip()) == 1


def test_the_pipeline_for_gitee(machine):
    pipeline = read(ROOT / "examples/ci/gitee-go.yml")
    (step,) = pipeline["stages"][0]["jobs"][0]["steps"]
    said = machine.shell("\n".join(step["commands"]))
    assert "1 passed" in said and "npu_rms_norm" in said
    assert any("--no-build-isolation git+https" in line for line in machine.pip())


def test_the_dockerfile():
    """What can be known without docker: the files that it copies are there, its commands are shell."""
    text = (ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        if word == "RUN":
            subprocess.run(["sh", "-n", "-c", rest], check=True)
        elif word == "COPY" and "--from" not in rest:
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
    needed = {"csrc", "src", "setup.py", "pyproject.toml", "README.md", "LICENSE"}
    assert needed <= set(
        re.findall(r"[\w.]+", " ".join(re.findall(r"^COPY (.*)$", text, re.MULTILINE)))
    )
