"""Names of inputs, attributes and outputs by type of node, for calls that give them by position.

On the card the operators' registered prototypes say them. Here they are known for the operators of this package, by
their schemas, and for the types that the interpreter runs, by its table. A converter that names another type means
the operator that it converts.
"""

from __future__ import annotations

import functools
import inspect
from contextvars import ContextVar
from typing import Any, NamedTuple

from torch._ops import OpOverload

from torch_npu.ops import _registry


class Prototype(NamedTuple):
    """Inputs first, then attributes, as GE has them; `outputs` are names, or (name, number) of a dynamic output."""

    arguments: tuple[str, ...]
    outputs: tuple[str, ...] = ("y",)


#: the operator whose converter runs
converting: ContextVar[Any] = ContextVar("converting", default=None)


def prototype(kind: str) -> Prototype | None:
    """What is known of a type of node; None if nothing is."""
    known = _known(kind)
    target = converting.get()
    if known is not None or not isinstance(target, OpOverload):
        return known
    meant = _of_schema(target._schema)
    written = tuple(a.name for a in target._schema.arguments if a.is_write)
    return meant._replace(outputs=written + meant.outputs)  # what is written is an output too


@functools.cache
def _known(kind: str) -> Prototype | None:
    from torchair.ge import interpreter, registry
    from torchair.ge.converters.elementwise import UNARY

    if kind in interpreter.KERNELS:
        parameters = inspect.signature(interpreter.KERNELS[kind]).parameters.values()
        named = tuple(p.name for p in parameters if p.kind is not p.VAR_KEYWORD)
        return Prototype(named, _OUTPUTS.get(kind, ("y",)))
    if kind in interpreter.elementwise():
        return Prototype(("x",) if interpreter.elementwise()[kind] in UNARY else ("x1", "x2"))
    found = [o for o in _registry.operators.values() if registry.type_of(o.overload) == kind]
    found.sort(key=lambda o: o.namespace != "npu")  # ATB's operators are no nodes of CANN's own
    return _of_schema(found[0].schema) if found else None


_OUTPUTS = {
    "LayerNormV4": ("y", "mean", "rstd"),
    "LogSoftmaxV2": ("logsoftmax",),
    "Assign": ("ref",),
}


def _of_schema(schema: Any) -> Prototype:
    tensors = tuple(a.name for a in schema.arguments if "Tensor" in str(a.type))
    others = tuple(a.name for a in schema.arguments if a.name not in tensors)
    count = len(schema.returns)
    outputs = tuple(
        r.name or ("y" if count == 1 else f"y{i}") for i, r in enumerate(schema.returns)
    )
    return Prototype(tensors + others, outputs)
