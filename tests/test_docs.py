"""The pages: generated ones are fresh, links lead somewhere, and every Python block runs."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

import torch_npu
from tools import differences, opdocs
from torch_npu.ops import _registry

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "README.zh.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "examples" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
FAMILIES = opdocs.families()
RERUN = "run: make docs-generated"


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)


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
