"""Parameters that upstream reserves: anything but their default is refused by name, and never ignored.

An operator's check says which they are (`must.unset`): it is asked with a sample, and then with another value.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.ops.support import make
from torch_npu.ops import _check
from torch_npu.ops._registry import operators


def others(kind: str, default: Any) -> Any:
    """A value of the parameter's type that is not its default."""
    values: dict[str, Any] = {
        "Tensor": make(1),
        "List[Tensor]": [make(1)],
        "int": 7,
        "number": 7,
        "float": 0.75,
        "bool": default is not True,
        "str": "other",
        "List[int]": [7],
        "List[float]": [0.75],
        "List[bool]": [default != [True]],
    }
    return values[kind.removeprefix("Optional[").removesuffix("]" if "Optional" in kind else "")]


def reserved(name: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The reserved parameters of an operator, by its first sample."""
    found: dict[str, Any] = {}
    with monkeypatch.context() as patched:
        patched.setattr(_check, "unset", lambda n, value, default=None: found.update({n: default}))
        call(name, {})
    return found


def call(name: str, change: dict[str, Any]) -> None:
    operator = operators[name]
    args, kwargs = operator.samples[0].inputs(make)
    given = dict(zip(operator.arguments, operator.bind(args, kwargs), strict=True)) | change
    operator.run_check(tuple(given[argument] for argument in operator.arguments))


@pytest.mark.parametrize("name", [n for n in sorted(operators) if operators[n].samples])
def test_other_values_are_refused(name, monkeypatch):
    kinds = {a.name: str(a.type) for a in operators[name].schema.arguments}
    for parameter, default in reserved(name, monkeypatch).items():
        if parameter not in kinds:  # a part of an argument, or one of another operator's call
            continue
        with pytest.raises((RuntimeError, NotImplementedError), match=f"argument '{parameter}'"):
            call(name, {parameter: others(kinds[parameter], default)})


def test_reserved_parameters_are_found(monkeypatch):
    found = reserved("npu_alltoallv_quant_gmm", monkeypatch)
    assert {"send_counts_tensor", "recv_counts_tensor"} <= found.keys()
