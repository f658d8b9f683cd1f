"""docs/rules.md and api/rules: each operator with a check is compared with upstream, or counted as not compared."""

from __future__ import annotations

import torch_npu  # noqa: F401  (registers the operators)
from tools import rules
from torch_npu.ops._registry import operators


def test_page_is_fresh():
    assert rules.PAGE.read_text("utf-8") == rules.page(), "run: make docs-generated"


def test_every_operator_with_a_check_is_on_the_page():
    page = rules.page()
    for name in rules.checked():
        assert f"### {name}\n" in page or f"`{name}`" in page, name


def test_facts_agree_with_the_checks():
    assert not rules.problems()


def test_arguments_are_found_through_helpers():
    assert rules.named_arguments(operators["npu_swiglu"]) == {"self", "dim"}
    assert {"x1", "x2", "gamma"} <= rules.named_arguments(operators["npu_add_rms_norm"])


def test_a_rule_that_nobody_compared_is_reported(monkeypatch):
    rule = {"argument": "self", "rule": "a float", "state": "kept"}
    entry = {"sources": ["somewhere"], "rules": [rule]}
    monkeypatch.setattr(rules, "facts", lambda: {"npu_swiglu": entry})
    assert rules.problems() == ["npu_swiglu: the rule of 'dim' is not in api/rules"]
    rule["argument"] = "nothing"
    assert "npu_swiglu: 'nothing' has rules in api/rules, but none in check" in rules.problems()
