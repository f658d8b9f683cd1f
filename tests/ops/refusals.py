"""Whether a chip may refuse a call that the default chip computes: what upstream says decides, not our `check`.

A refusal by a chip is right

- if it refuses the operator as a whole, and upstream's table of products lacks the chip (api/op_chips.json);
- if a dtype is refused that the chip lacks (chips.toml);
- if api/rules, which cites upstream's sources, has a rule for this operator and argument that names the chip.
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

from softnpu import chips
from tests import ROOT
from tools import rules
from torch_npu._errors import BadArgument, ErrCode
from torch_npu.ops._registry import operators

#: how a family is called in api/rules; a rule for A2 and A3 says that the others differ
WORDS = {
    "310P": r"310P|\bA2\b",
    "910A": r"910A|\bA2\b",
    "A2": r"\bA2\b",
    "A3": r"\bA3\b",
    "A5": r"Ascend950|\bA5\b|A2 and A3",
}
_WHOLE = re.compile(r"on an? (chip|Atlas)|of the family|Ascend950$")
_REFUSED = re.compile(
    r"([\w.:]+): argument '(\w+)' must be (.*?), but received (.*?)\.?(?:\n|\\n|$)"
)


@cache
def products() -> dict[str, Any]:
    """Operators, and the families of chips that upstream's pages of their functions list."""
    return json.loads((ROOT / "api" / "op_chips.json").read_text("utf-8"))["operators"]


@cache
def _rules() -> dict[str, Any]:
    return rules.facts()


def refusal(error: BaseException | None) -> tuple[str, BadArgument] | None:
    """The operator and the reason, if an operator's check is behind an error: of another rank, or of a compiler that
    quotes it, too, or where a test expected other words."""
    while error is not None:
        # A test that expected other words has its expectation in the text first.
        if found := _REFUSED.findall(str(error)):
            operator, argument, expected, received = found[-1]
            return operator, BadArgument(argument, expected, received, ErrCode.VALUE)
        error = error.__cause__ or error.__context__
    return None


def is_right(chip: chips.Chip, operator: str, bad: BadArgument) -> bool:
    """Whether upstream says, too, that the chip takes no such call."""
    if bad.argument == "device" or _WHOLE.match(bad.expected):
        entry = products().get(operator)
        if entry is not None:
            return chip.family not in entry["chips"]
    lacks = str(bad.received) == "torch.bfloat16" and "bfloat16" not in chip.dtypes
    return lacks or any(
        rule["state"] in rules.ENFORCED
        and rule["argument"] == bad.argument
        and re.search(WORDS[chip.family], rule["rule"])
        for rule in _stated(operator)
    )


def _stated(operator: str) -> list[dict[str, str]]:
    """The rules of an operator; a functional, in-place or out form has those of the operator it is a form of."""
    found = operators.get(operator)
    form = found.form_of.name if found is not None and found.form_of else operator
    return [rule for name in {operator, form} for rule in _rules().get(name, {}).get("rules", [])]
