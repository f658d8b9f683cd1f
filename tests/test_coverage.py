"""docs/coverage.md, softnpu/coverage.json and api/exceptions.toml tell the truth about the package."""

from __future__ import annotations

import pytest

import torch_npu  # noqa: F401  (the package under introspection)
from tools import coverage


def test_every_documented_name_is_here_or_excused():
    assert not coverage.missing()


def test_exceptions_still_hold():
    assert not coverage.stale(), "run: python -m tools.coverage --prune"


def test_page_is_fresh():
    assert coverage.PAGE.read_text("utf-8") == coverage.render(), "run: make docs-generated"
    assert coverage.TABLE.read_text("utf-8") == coverage.table(), "run: make docs-generated"


def test_all_names_are_known():
    facts = coverage.upstream()
    assert len(facts["seeds"]) == 343
    assert len(facts["others"]) == 632
    assert not set(facts["seeds"]) & set(facts["others"])


def test_a_missing_name_is_found(monkeypatch):
    """The check can fail: without its excuse, an absent name is reported."""
    monkeypatch.setattr(coverage, "exceptions", dict)
    monkeypatch.setattr(
        coverage, "upstream", lambda: {"seeds": {"torch_npu.npu_nothing": {"table": "t"}}}
    )
    assert coverage.missing() == [
        "torch_npu.npu_nothing is missing and api/exceptions.toml does not say why"
    ]


@pytest.mark.parametrize(
    "name,signature,part",
    [
        ("torch_npu.npu.set_device", "(device)", ""),
        (
            "torch_npu.npu.set_device",
            "(index)",
            "the parameters are (device), upstream has (index)",
        ),
        ("torch_npu.npu.empty_cache", "(now=True)", "upstream has (now)"),
        (
            "torch_npu.npu.memory_stats",
            "(device=0)",
            "the default of `device` is None, upstream's is 0",
        ),
    ],
)
def test_signatures_are_compared(name, signature, part):
    found = coverage._entry(name, "t", signature)
    assert found.found and part in found.differs and bool(part) == bool(found.differs)


def test_schemas_are_compared(monkeypatch):
    assert coverage._entry("torch_npu.npu_rms_norm", "t", None).status == "works"
    other = {
        "npu_rms_norm": [
            "npu_rms_norm(Tensor self) -> Tensor",
            "npu_rms_norm.two(Tensor self) -> Tensor",
        ]
    }
    monkeypatch.setattr(coverage, "schemas", lambda: other)
    assert (
        "the schema of `default` is" in coverage._entry("torch_npu.npu_rms_norm", "t", None).differs
    )
    monkeypatch.setattr(coverage, "schemas", lambda: {"npu_rms_norm": other["npu_rms_norm"][1:]})
    assert (
        coverage._entry("torch_npu.npu_rms_norm", "t", None).differs
        == "the overload `two` is absent"
    )


def test_prune(monkeypatch, tmp_path):
    file = tmp_path / "exceptions.toml"
    file.write_text(
        '[absent]\n"torch_npu.npu_rms_norm" = "old"\n"torch_npu.distributed.rpc.options.*" = "planned"\n',
        "utf-8",
    )
    monkeypatch.setattr(coverage, "EXCEPTIONS", file)
    coverage.exceptions.cache_clear()
    try:
        coverage.prune()
        assert (
            file.read_text("utf-8")
            == '[absent]\n"torch_npu.distributed.rpc.options.*" = "planned"\n'
        )
    finally:
        monkeypatch.undo()
        coverage.exceptions.cache_clear()
