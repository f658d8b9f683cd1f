"""The other forms of an operator, derived from its one definition: functional, in-place and `out=`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch._C import parse_schema

from torch_npu import _errors
from torch_npu.ops._operator import Operator, library_of
from torch_npu.ops._signatures import mutable_arguments


def functional_form(operator: Operator, schema: str, export: bool = True) -> Operator:
    """The form of an operator that writes arguments which leaves them alone.

    It works on copies of them. Its results are those of the operator, with the copies in place of the arguments, or,
    if the operator returns other things, these followed by the copies.
    """
    places = [operator.arguments.index(name) for name in operator.mutable]

    def on_copies(body: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        values = list(args)
        for place in places:
            values[place] = None if values[place] is None else _copy(values[place])
        results = body(*values)
        copies = tuple(values[place] for place in places)
        if operator.returns_target or results is None:  # None: a schema that returns nothing
            return copies if len(copies) > 1 else copies[0]
        return (*(results if isinstance(results, tuple) else (results,)), *copies)

    written = ", ".join(f"`{name}`" for name in operator.mutable)
    return _derived(
        operator, schema, export, on_copies, f"on copies of {written}, which it returns"
    )


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


def inplace_form(operator: Operator, schema: str, export: bool = True) -> Operator:
    """The form that writes the operator's result into the first argument and returns that."""

    def over_first(body: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        return args[0].copy_(body(*args))

    return _derived(
        operator,
        schema,
        export,
        over_first,
        f"in place: `{operator.arguments[0]}` is changed and returned",
    )


def _derived(
    operator: Operator,
    schema: str,
    export: bool,
    around: Callable[[Callable[..., Any], tuple[Any, ...]], Any],
    what: str,
) -> Operator:
    """An operator whose parts are those of another one, with `around` between; parts may still be added to that one."""

    def kernel(**arguments: Any) -> Any:
        return around(operator.formula, tuple(arguments.values()))

    kernel.__doc__ = f"`{operator.base}` {what}.\n\n    {operator.__doc__}"
    kernel.__module__ = operator.__module__
    form = Operator(
        schema,
        kernel,
        export=export,
        random=operator.random,
        host_ok=operator.host_ok,
        chips=operator.chips,
        compiled="call",
        product=operator.product,
        hf32=operator.hf32,
        infinite=operator.infinite,
    )
    form.form_of = operator
    form.body = lambda *args: around(operator.body, args)
    form.shapes = lambda *args: around(operator.shapes, args)
    form._checked = lambda args: operator._checked(args) if operator._checked else None
    return form


def hidden_schema(operator: Operator) -> str:
    """The schema of the functional form that graphs use where upstream has none."""
    name = f"_functional_{operator.local.replace('.', '_')}"
    arguments = re.search(r"\((.*)\) -> ", re.sub(r"\([a-z]!\)", "", str(operator.schema)))
    assert arguments is not None
    returns = ", ".join(["Tensor"] * len(operator.mutable))
    return f"{operator.namespace}::{name}({arguments[1]}) -> ({returns})"


def register_functionalize(operator: Operator, form: Operator) -> None:
    """In-place operators in graphs.

    AOTAutograd functionalizes an operator that writes arguments by itself, unless it returns one of them, as upstream's
    in-place schemas do. Such a one gets a Functionalize kernel that calls the functional form.
    """

    def functionalize(*args: Any, **kwargs: Any) -> Any:
        values = dict(zip(operator.arguments, operator.bind(args, kwargs), strict=True))
        fresh = form.overload(*args, **kwargs)
        fresh = fresh if isinstance(fresh, tuple) else (fresh,)
        for target, value in zip(operator.mutable, fresh, strict=True):
            values[target].copy_(value)
        returned = tuple(values[name] for name in operator.mutable)
        return returned if len(returned) > 1 else returned[0]

    library_of(operator.namespace).impl(operator.local, functionalize, "Functionalize")


def register_out(operator: Operator, schema: str) -> None:
    """The out form: the results are copied into the mutable arguments, resized as PyTorch does."""
    parsed = parse_schema(f"{operator.namespace}::{schema}")
    name = parsed.name.split("::")[-1] + "." + parsed.overload_name
    outs = mutable_arguments(parsed)
    if [a.name for a in parsed.arguments] != [*operator.arguments, *outs]:
        raise TypeError(
            f"{name}: the out form takes the arguments of {operator.name} and the results"
        )
    library_of(operator.namespace).define(schema)

    def launch(*args: Any, **kwargs: Any) -> Any:
        targets = [kwargs.pop(n) for n in outs]
        results = operator.overload(*args, **kwargs)
        results = results if isinstance(results, (tuple, list)) else (results,)
        for out, target, result in zip(outs, targets, results, strict=True):
            if target is None:
                bad = _errors.BadArgument(out, "a tensor", None, _errors.ErrCode.TYPE)
                raise _errors.operator_error(name, bad)
            if target.dtype != result.dtype:
                bad = _errors.BadArgument(
                    outs[0], f"of dtype {result.dtype}", target.dtype, _errors.ErrCode.TYPE
                )
                raise _errors.operator_error(name, bad)
            target.resize_(result.shape).copy_(result)
        return tuple(targets) if len(targets) > 1 else targets[0]

    library_of(operator.namespace).impl(name, launch, "CompositeExplicitAutograd")
