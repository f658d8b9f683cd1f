"""The pages: generated ones are fresh, links lead somewhere, and every block of code runs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

import torch_npu
from softnpu import golden
from softnpu.python_versions import tomllib
from softnpu.run import read_faults
from tests import PYTHONPATH, ROOT
from tools import differences, opdocs
from torch_npu.ops import _registry

PAGES = [
    ROOT / "README.md",
    ROOT / "README.zh.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "examples" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "sanitizer").glob("*.md")),
]
OPERATOR_PAGES = sorted((ROOT / "docs" / "ops").glob("*.md"))
FAMILIES = opdocs.families()
RERUN = "run: make docs-generated"


#: what stands between fences that is no program: schemas, output, diagrams
SHOWN = ("", "text")


def fences(page: Path) -> list[tuple[str, str]]:
    """(language, text) of all blocks, indented ones too."""
    found = re.findall(
        r"^( *)```(\w*)\n(.*?)^ *```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    return [(language, text) for _, language, text in found]


def blocks(page: Path, wanted: str = "python") -> list[str]:
    return [text for language, text in fences(page) if language == wanted]


def commands() -> list[tuple[Path, str]]:
    """Every line of every shell block, once."""
    lines = [(p, x) for p in PAGES for text in blocks(p, "sh") for x in text.splitlines() if x]
    return list({shlex.join(shlex.split(x, comments=True)): (p, x) for p, x in lines}.values())


@pytest.mark.parametrize("page", PAGES + OPERATOR_PAGES, ids=lambda p: p.name)
def test_no_code_hides_in_a_block_that_is_not_run(page):
    text = page.read_text("utf-8")
    assert len(re.findall(r"^ *```", text, re.MULTILINE)) == 2 * len(fences(page))
    for language, block in fences(page):
        assert language in ("python", "sh", "toml", *SHOWN), f"{page.name}: who runs {language}?"
        if language in SHOWN:
            code = re.search(
                r"^(import|from|make|pip|python|torchrun|softnpu \w+) [^ ]", block, re.MULTILINE
            )
            assert code is None, f"{page.name}: {code and code[0]!r} in a block that nobody runs"


@pytest.mark.parametrize(
    "page,index",
    [pytest.param(p, i, id=f"{p.name}-{i}") for p in PAGES for i in range(len(blocks(p)))],
)
def test_python_block_runs(page, index, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_registry, "operators", dict(_registry.operators))  # a block may define one
    # importing it does something, but only the first time
    monkeypatch.delitem(sys.modules, "torch_npu.contrib.transfer_to_npu", raising=False)
    monkeypatch.delattr(torch_npu.contrib, "transfer_to_npu", raising=False)
    code = compile(blocks(page)[index], f"{page.name}, block {index}", "exec")
    exec(code, {"__name__": "__main__"})


@pytest.mark.parametrize("page", OPERATOR_PAGES, ids=lambda p: p.stem)
def test_the_example_of_an_operator_runs_as_it_stands(page):
    operator = next((o for o in _registry.operators.values() if o.base == page.stem), None)
    with operator.on_its_chip() if operator is not None else nullcontext():
        for block in blocks(page):
            exec(compile(block, page.name, "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("command", [c for _, c in commands() if not c.startswith("torchrun")])
def test_shell_command_works(command, tmp_path):
    words = shlex.split(command, comments=True)
    if words[0] == "make":
        subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    elif words[:2] == ["pip", "install"]:
        needed = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["build-system"][
            "requires"
        ]
        first = {"torch==2.13.0", "numpy", *needed}
        assert set(words[2:]) in (first, {"--no-build-isolation", "."})
    else:
        (tmp_path / "train.py").write_text(TRAIN, "utf-8")
        (tmp_path / "tests").mkdir()
        (tmp_path / "tests" / "test_train.py").write_text(
            "import train\ndef test(): pass\n", "utf-8"
        )
        (tmp_path / "faults.toml").write_text(
            blocks(ROOT / "docs" / "faults.md", "toml")[0], "utf-8"
        )
        for name in ("recording", "run_a", "run_b"):
            with golden.record(tmp_path / name):
                torch_npu.npu_swiglu(torch.ones(2, 8, device="npu"))
        done = launch(words, tmp_path)
        assert done.returncode == 0, done.stderr
        said = "give the same output" if "--shuffle" in words else "process(es) on emulated"
        assert words[1] != "run" or said in done.stderr


@pytest.mark.slow
def test_torchrun_commands_work(tmp_path):
    """On this machine; those of two machines side by side, with one process each."""
    (tmp_path / "train.py").write_text(TRAIN, "utf-8")
    single, *several = [c for _, c in commands() if c.startswith("torchrun")]
    assert launch(shlex.split(single), ROOT).returncode == 0
    assert len(several) == 2
    nodes = [
        launch(
            shlex.split(c.replace("10.0.0.1", "127.0.0.1").replace("per_node 4", "per_node 1"), comments=True),
            tmp_path,
            wait=False,
        )
        for c in several
    ]  # fmt: skip
    assert [node.wait() for node in nodes] == [0, 0]


TRAIN = """
import os, torch, torch.distributed as dist, torch_npu
total = torch.ones(2, device="npu")
if "RANK" in os.environ:
    torch.npu.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("hccl")
    total = torch.ones(2, device="npu", dtype=torch.int32)
    dist.all_reduce(total)
    assert total[0] == dist.get_world_size()
    dist.destroy_process_group()
"""


def launch(words: list[str], folder: Path, wait: bool = True):
    """A command of this environment, installed or not."""
    module = {"softnpu": "softnpu", "torchrun": "torch.distributed.run", "pytest": "pytest"}[
        words[0]
    ]
    plugin = ["-p", "softnpu.pytest_plugin"] if words[0] == "pytest" else []
    command = [sys.executable, "-m", module, *plugin, *words[1:]]
    path = os.pathsep.join([PYTHONPATH, str(folder)])
    options = {"cwd": folder, "env": {**os.environ, "PYTHONPATH": path}, "text": True}
    if wait:
        return subprocess.run(command, capture_output=True, check=False, **options)
    return subprocess.Popen(command, **options)


def test_faults_of_the_pages_are_known(tmp_path):
    found = [text for page in PAGES for text in blocks(page, "toml")]
    assert found
    for text in found:
        (tmp_path / "faults.toml").write_text(text, "utf-8")
        assert read_faults(tmp_path / "faults.toml", devices=8)


def test_readme_has_code():
    assert blocks(ROOT / "README.md") and blocks(ROOT / "README.zh.md")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_both_readmes_have_the_same_sections():
    def shape(name: str) -> list[tuple[int, int]]:
        parts = re.split(r"^(#+) .*$", (ROOT / name).read_text("utf-8"), flags=re.MULTILINE)
        return [
            (len(level), text.count("```"))
            for level, text in zip(parts[1::2], parts[2::2], strict=True)
        ]

    assert shape("README.md") == shape("README.zh.md")


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_operator_page_is_fresh(name):
    """Rendering runs the example of the page, too."""
    page = opdocs.PAGES / f"{name}.md"
    assert page.exists(), RERUN
    fresh = opdocs.render(name, FAMILIES[name], accuracy=False)
    assert opdocs.without_numbers(page.read_text("utf-8")) == fresh, RERUN


def test_operator_index_is_fresh():
    assert (opdocs.PAGES / "README.md").read_text("utf-8") == opdocs.index(FAMILIES), RERUN


def test_no_page_without_operator():
    assert {p.stem for p in opdocs.PAGES.glob("*.md")} == {*FAMILIES, "README"}, RERUN


def test_differences_are_fresh():
    assert differences.PAGE.read_text("utf-8") == differences.page(), RERUN
    assert "npu_fusion_attention" in differences.generated()


def test_accuracy_is_measured():
    """The number on a page is an error, not a constant: fp16 has more of it than fp32, and both have some."""
    operator = FAMILIES["npu_rms_norm"]
    errors = [float(opdocs._worst(operator, d)) for d in (torch.float16, torch.float32)]
    assert 1e-5 < errors[0] < 1e-2 and 0 < errors[1] < 1e-5


def test_every_page_is_in_the_contents_of_the_site():
    """What `make docs` would refuse, without mkdocs: pages that the list of contents does not have."""
    nav = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
    guests = re.findall(r'": "(\S+\.md)"', (ROOT / "tools" / "site.py").read_text("utf-8"))
    own = {p.name for p in (ROOT / "docs").glob("*.md")} | {"ops/README.md"}
    assert own | set(guests) <= set(nav)
