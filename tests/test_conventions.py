"""What the sources keep to, whoever writes them: words that PyTorch users know, one spelling, patches that can be undone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("benchmarks", "csrc", "docs", "examples", "src", "tests", "tools")
SUFFIXES = {".py", ".cpp", ".h", ".md", ".toml", ".html"}

#: private word -> what it is called
WORDS = {
    r"\btwins?\b": "alias, host operator or functional form",
    r"\b(few_rows|FewRows)\b": "skinny matmul",
    r"\b(put_off|putting off|put off)\b": "deferred",
    r"\b(take_back|let_go|settle)\b": "reset, release, resolve_device",
    r"\b(hopeless|heeds?|heeding)\b": "deadlocked, respects",
    r"\bnpu_watch\b": "launch hooks",
    r"\bmust\.be\b": "must.hold",
}
#: British spelling -> PyTorch's
SPELLING = {
    r"\w*(quanti|initiali|normali|optimi|seriali|synchroni|recogni|minimi|maximi|summari|organi)s(e|ed|es|er|ing|ation)\b": "z",
    r"\b(neighbour|colour|behaviour|favour|honour|flavour)": "or",
    r"\b(centre|metre|catalogue|artefact|judgement)s?\b": "center, meter, catalog, artifact, judgment",
    r"\b(labelled|labelling|modelled|modelling|cancelled|cancelling|signalled)\b": "one l",
}
HERE = Path(__file__).relative_to(ROOT)
#: quotations of upstream: names in its facts, sentences of its sources
QUOTED = {Path("docs/plan-clock.md")}


def _files() -> Iterator[tuple[Path, str]]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            name = path.relative_to(ROOT)
            if path.suffix in SUFFIXES and path.is_file() and name != HERE:
                yield name, path.read_text("utf-8")


@pytest.fixture(scope="module")
def files():
    return list(_files())


def _found(files, patterns: dict[str, str]) -> list[str]:
    found = []
    for pattern, instead in patterns.items():
        word = re.compile(pattern, re.IGNORECASE)
        for name, text in files:
            if name not in QUOTED and (match := word.search(text)):
                line = text.count("\n", 0, match.start()) + 1
                found.append(f"{name}:{line}: {match.group()} ({instead})")
    return found


def test_words_are_those_of_pytorch(files):
    assert not _found(files, WORDS)


def test_spelling_is_that_of_pytorch(files):
    assert not _found(files, SPELLING)


def _patched(tree: ast.AST) -> Iterator[ast.expr]:
    """What a module sets in torch: `torch.a.b = c`, `setattr(torch.a, ...)`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            yield from (t for t in node.targets if isinstance(t, ast.Attribute))
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "setattr":
            yield node.args[0]


def test_torch_is_patched_through_patches_alone(files):
    found = []
    for name, text in files:
        if name.suffix == ".py" and name.parts[0] == "src" and "torch." in text:
            targets = [ast.unparse(target) for target in _patched(ast.parse(text))]
            found += [f"{name}: {target}" for target in targets if target.startswith("torch.")]
    assert not found


def test_the_journeys_of_the_map_name_what_there_is(files):
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    journeys = page.split("## Six journeys")[1].split("\n## ")[0]
    assert journeys.count("\n**") == 6
    sources = [(name, text) for name, text in files if name.parts[0] in ("src", "csrc")]
    words = set(re.findall(r"\w+", " ".join(text for _, text in sources)))
    paths = {str(name) for name, _ in sources}
    for named in re.findall(r"`([^`]+)`", journeys):
        if named.endswith((".py", ".cpp")):
            assert any(path.endswith(f"/{named}") or path == named for path in paths), named
        elif named.endswith("/"):
            assert any(f"/{named}" in path for path in paths), named
        else:
            assert set(re.findall(r"\w+", named)) <= words, named
