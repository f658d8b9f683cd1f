"""Which function makes an ATen operator's nodes: register_fx_node_ge_converter, and the conversion by schema.

An operator of ATen or of this package without a converter of its own (`_supported` says which) becomes one node: its
type is the operator's name in CamelCase (without `npu_`), tensors are inputs, everything else attributes, named as in
its schema. The attribute `_torch_operator` says which operator it was, so that the interpreter can run it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

from softnpu import _C
from softnpu.collectives import GE_TYPES
from torch_npu.ops._registry import operator_of
from torch_npu.ops._signatures import camel_case
from torchair.ge import _supported, attr
from torchair.ge._types import DataType
from torchair.ge.graph import Const, Tensor, TensorSpec, attribute, current, node
from torchair.ge.prototypes import converting

TORCH_OPERATOR = "_torch_operator"
_converters: dict[Any, Callable[..., Any]] = {}


def register_fx_node_ge_converter(
    aten_op: Any,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates the function that converts `aten_op` (`torch.ops.x.y.default`): its arguments are the operator's.

    It may take `meta_outputs` besides, the TensorSpec of the results, and returns the results' tensors.
    """
    if not callable(aten_op):
        raise TypeError(
            f"register_fx_node_ge_converter: expected an operator such as torch.ops.aten.sin.default, received {aten_op!r}"
        )

    def register(converter: Callable[..., Any]) -> Callable[..., Any]:
        targets = [aten_op]
        if isinstance(aten_op, OpOverloadPacket):
            targets = [getattr(aten_op, overload) for overload in aten_op.overloads()]
        for target in targets:
            _converters[target] = converter
        return converter

    return register


def has_registered() -> bool:
    """Whether a program has registered converters of its own."""
    return any(not str(one.__module__).startswith("torchair.") for one in _converters.values())


def has_converter(target: Any) -> bool:
    """Whether a graph may hold the operator."""
    return target in _converters or _supported.by_schema(target)


def convert_call(target: Any, args: Sequence[Any], kwargs: dict[str, Any], meta: Any) -> Any:
    """The nodes of one call; its results' tensors."""
    converter = _converters.get(target)
    if converter is not None:
        options = dict(kwargs)
        parameters = inspect.signature(converter).parameters
        if "meta_outputs" in parameters:
            options["meta_outputs"] = _specs(meta)
        if "raw_meta" in parameters:
            options["raw_meta"] = meta
        token = converting.set(target)
        try:
            result = converter(*args, **options)
        finally:
            converting.reset(token)
        if result is not NotImplemented:
            return result
    if not isinstance(target, OpOverload):
        raise NotImplementedError(f"{target} has no converter")
    return by_schema(target, args, kwargs, meta)


def _specs(meta: Any) -> Any:
    if isinstance(meta, (list, tuple)):
        return [_specs(one) for one in meta]
    return None if meta is None else TensorSpec(meta)


def type_of(target: OpOverload) -> str:
    """The type of the node that an operator becomes by its schema."""
    operator = operator_of(target)
    if operator is not None:
        return operator.ge
    name = target._schema.name.split("::")[-1]
    return GE_TYPES.get(name) or camel_case(name)


@functools.cache
def aten_type(name: str) -> str:
    """CANN's type for an ATen operator, whose inputs a converter names as CANN does."""
    return _C.operator_traits().get(f"aten::{name}", {}).get("type") or camel_case(name)


def by_schema(target: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], meta: Any) -> Any:
    """One node for the call, as the operator's schema says."""
    inputs: dict[str, Any] = {}
    attrs: dict[str, Any] = {TORCH_OPERATOR: attr.Str(str(target))}
    for position, argument in enumerate(target._schema.arguments):
        if position < len(args):
            value = args[position]
        else:
            value = kwargs.get(argument.name, argument.default_value)
        if value is None or (isinstance(value, (list, tuple)) and not value):
            if "Tensor" in str(argument.type):
                inputs[argument.name] = None if value is None else []
            elif value is not None:
                attrs[argument.name] = attr.ListInt([])
        elif isinstance(value, Tensor):
            inputs[argument.name] = value
        elif isinstance(value, (list, tuple)) and any(isinstance(v, Tensor) for v in value):
            if "Tensor" in str(argument.type):
                given = [v is not None for v in value]
                inputs[argument.name] = [v for v in value if v is not None]
                if not all(given):
                    attrs[f"_given_{argument.name}"] = attr.ListBool(given)
            else:
                inputs[argument.name] = pack(value)
        else:
            attrs[argument.name] = attribute(value)
    results = node(type_of(target), inputs, _outputs(target, meta), attrs)
    if results is None or any(
        a.alias_info and a.alias_info.is_write for a in target._schema.arguments
    ):
        current().kept.append(current().proto.op[-1].name)
    return results


def convert_named(target: OpOverload, arguments: dict[str, Any], meta: Any) -> Any:
    """`convert_call` of arguments that are all given by name."""
    given = {a.name: arguments.get(a.name, a.default_value) for a in target._schema.arguments}
    by_name = {a.name: given.pop(a.name) for a in target._schema.arguments if a.kwarg_only}
    return convert_call(target, tuple(given.values()), by_name, meta)


def _outputs(target: OpOverload, meta: Any) -> list[Any]:
    returns = target._schema.returns
    if not returns:
        return []
    if len(returns) == 1 and isinstance(meta, (list, tuple)):
        return [(returns[0].name or "y", len(meta))]
    names = [r.name or ("y" if len(returns) == 1 else f"y{i}") for i, r in enumerate(returns)]
    metas = meta if len(returns) > 1 else [meta]
    return [
        (name, len(one)) if isinstance(one, (list, tuple)) else name
        for name, one in zip(names, metas, strict=True)
    ]


def pack(values: Sequence[Any]) -> Tensor:
    """A list of integers, some of them computed in the graph, as one tensor."""
    parts = [v if isinstance(v, Tensor) else Const(v, dtype=DataType.DT_INT64) for v in values]
    attrs = {"N": attr.Int(len(parts)), "axis": attr.Int(0)}
    made = node("Pack", {"x": parts}, ["y"], attrs)
    made.set_meta(torch.empty(len(parts), dtype=torch.int64, device="meta"))
    made.desc.device_type = "CPU"
    return made
