"""Operators that describe memory instead of computing: their kernel gets the NPU tensors themselves.

`@memory_op(schema)` is `@npu_op(schema)` (see `_registry`) without the border: no CPU aliases and no device task, so
that the kernel can look at storages. A class may say how graphs replace it (`functional`), since the twin that
`_registry` makes for operators that return their target works on copies of the values alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._C import parse_schema

from softnpu import _C
from torch_npu import _errors
from torch_npu.ops import _registry
from torch_npu.ops._autograd import register_autograd
from torch_npu.ops._operator import (
    NAMESPACE,
    Operator,
    function_of,
    library,
    mutable_arguments,
    register_fake,
)


def memory_op(
    schema: str, *, listed: bool = True, export: bool = True, key: str = "PrivateUse1"
) -> Callable[[type], type]:
    """Registers the class below it as the operator `npu::<schema>`.

    `listed=False` keeps an overload out of the registry's table (pages, exports, common tests). `key` is
    CompositeExplicitAutograd for operators that take no tensor, which the dispatcher cannot send to a device.
    """

    def register(definition: type) -> type:
        parsed = parse_schema(f"{NAMESPACE}::{schema}")
        base = parsed.name.split("::")[-1]
        name = f"{base}.{parsed.overload_name}" if parsed.overload_name else base
        operator = Operator(name, parsed, definition, export)
        if listed:
            _registry.operators[name] = operator
        library.define(schema)
        _implement(operator, key)
        return definition

    return register


def _implement(operator: Operator, key: str) -> None:
    definition, name = operator.definition, operator.name
    kernel = function_of(definition, "kernel")
    assert kernel is not None, f"{definition.__name__} has no kernel"
    check = _registry._checked(operator, function_of(definition, "check"))
    shapes = function_of(definition, "meta") or kernel

    def launch(*args: Any, **kwargs: Any) -> Any:
        check(*args, **kwargs)
        try:
            return kernel(*args, **kwargs)
        except _errors.BadArgument as bad:  # what only the storage can tell
            raise _errors.operator_error(name, bad) from None

    def fake(*args: Any, **kwargs: Any) -> Any:
        check(*args, **kwargs)
        return shapes(*args, **kwargs)

    library.impl(name, launch, key)
    register_fake(name, fake)
    backward = function_of(definition, "backward")
    mutable = mutable_arguments(operator.schema)
    if backward is not None:
        register_autograd(operator, backward)
    elif mutable:
        _C.count_versions(operator.schema.name, operator.schema.overload_name)
    functional = function_of(definition, "functional")
    if functional is not None:
        library.impl(name, functional, "Functionalize")
