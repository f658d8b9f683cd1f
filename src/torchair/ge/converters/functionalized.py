"""Operators that write their arguments, as AOTAutograd makes them functional: copies first, then the operator."""

from __future__ import annotations

from typing import Any

import torch
from torch._higher_order_ops.auto_functionalize import auto_functionalized, auto_functionalized_v2

from torchair.ge import attr
from torchair.ge.graph import Tensor, attribute, node
from torchair.ge.registry import convert_named, pack, register_fx_node_ge_converter


def _copy(value: Tensor) -> Tensor:
    made = node("TensorMove", {"x": value}, ["y"])
    made.set_meta(value.meta)
    return made


def _copies(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_copies(one) for one in value]
    return _copy(value) if isinstance(value, Tensor) else value


def _results(made: Any, returns: int) -> list[Any]:
    if returns == 0:
        return [None]
    return [made] if returns == 1 else list(made)


def _metas(operator: Any, raw: Any) -> Any:
    """What shape inference found for the operator's own results."""
    count = len(operator._schema.returns)
    if count == 0:
        return None
    return raw[0] if count == 1 else raw[:count]


@register_fx_node_ge_converter(auto_functionalized)
def _functionalized(operator: Any, *, raw_meta: Any, **arguments: Any) -> Any:
    written = [a.name for a in operator._schema.arguments if a.alias_info and a.alias_info.is_write]
    copied = {name: _copies(arguments[name]) for name in written}
    made = convert_named(operator, arguments | copied, _metas(operator, raw_meta))
    return [*_results(made, len(operator._schema.returns)), *copied.values()]


@register_fx_node_ge_converter(auto_functionalized_v2)
def _functionalized_v2(operator: Any, *, raw_meta: Any, **options: Any) -> Any:
    bases = [_copy(one) for one in options["_all_bases"]]
    arguments = {k: v for k, v in options.items() if not k.startswith("_")}
    for argument in operator._schema.arguments:
        name = argument.name
        if not (argument.alias_info and argument.alias_info.is_write):
            continue
        if f"_{name}_length" in options:
            count = options[f"_{name}_length"]
            arguments[name] = [_view(options, f"_{name}_{i}", bases) for i in range(count)]
        else:
            arguments[name] = _view(options, f"_{name}", bases)
    made = convert_named(operator, arguments, _metas(operator, raw_meta))
    return [*_results(made, len(operator._schema.returns)), *bases]


def _view(options: dict[str, Any], prefix: str, bases: list[Tensor]) -> Any:
    """The argument as a view of the copy of its base."""
    index = options.get(f"{prefix}_base_index")
    if index is None:
        return None
    base = bases[index]
    if f"{prefix}_size" not in options:
        if f"{prefix}_slice_dim" in options:
            return _slice(base, *(options[f"{prefix}_slice_{k}"] for k in ("dim", "start", "end")))
        return base
    parts = {"size": options[f"{prefix}_size"], "stride": options[f"{prefix}_stride"]}
    inputs: dict[str, Any] = {"self": base}
    attrs = {"_torch_operator": attr.Str("aten.as_strided.default")}
    attrs["storage_offset"] = attribute(options[f"{prefix}_storage_offset"])
    for name, values in parts.items():
        if any(isinstance(v, Tensor) for v in values):
            inputs[name] = pack(values)
        else:
            attrs[name] = attr.ListInt(list(values))
    made = node("AsStrided", inputs, ["y"], attrs)
    made.set_meta(base.meta)
    return made


def _slice(base: Tensor, dim: int, start: int, end: int) -> Tensor:
    made = convert_named(
        torch.ops.aten.slice.Tensor,
        {"self": base, "dim": dim, "start": start, "end": end},
        base.meta,
    )
    made.set_meta(base.meta)
    return made
