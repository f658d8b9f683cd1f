"""Operators without samples of their own, which borrow another one's: out forms, further overloads, workspaces.

Arguments go by name. What the lender's sample lacks: an argument that is written gets a result of the lender, other
required ones a tensor of the sample or a small number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch

from torch_npu.ops._registry import Operator, operators

_SUFFIX = re.compile(r"_(get_max_workspace|infer_output)$")


def borrowers() -> Iterator[tuple[str, Any, Operator]]:
    """Name, overload and lender of each."""
    lenders = {(o.namespace, o.base): o for o in operators.values() if o.samples}
    packets = sorted({(o.namespace, o.base) for o in operators.values()})
    for namespace, base in packets:
        lender = lenders.get((namespace, base)) or lenders.get(
            (namespace, _SUFFIX.sub("", base).lstrip("_"))
        )
        packet = getattr(getattr(torch.ops, namespace), base)
        for overload in packet.overloads():
            local = base if overload == "default" else f"{base}.{overload}"
            name = local if namespace == "npu" else f"{namespace}::{local}"
            known = operators.get(name)
            if lender is not None and (known is None or not known.samples):
                yield name, getattr(packet, overload), lender


def arguments(
    schema: Any, lender: Operator, args: list[Any], kwargs: dict[str, Any], run: bool
) -> dict[str, Any]:
    """The arguments of the borrower by name; `run` says whether results are there to be written to."""
    given = dict(zip(lender.arguments, args, strict=False)) | kwargs
    made: dict[str, Any] = {}
    results: list[torch.Tensor] | None = None
    for argument in schema.arguments:
        if argument.name in given:
            made[argument.name] = given[argument.name]
        elif argument.alias_info is not None and argument.alias_info.is_write:
            if run:
                results = _results(lender, args, kwargs) if results is None else results
                made[argument.name] = results.pop(0) if results else None
        elif not argument.has_default_value():
            made[argument.name] = _any(str(argument.type), given)
    return made


def _results(lender: Operator, args: list[Any], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    found = lender.overload(*args, **kwargs)
    return [found] if isinstance(found, torch.Tensor) else list(found or ())


def _any(kind: str, given: dict[str, Any]) -> Any:
    if kind == "Tensor":
        return next((value for value in given.values() if isinstance(value, torch.Tensor)), None)
    return 2 if kind == "int" else None
