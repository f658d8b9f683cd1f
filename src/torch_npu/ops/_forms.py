"""The other forms of an operator: `out=`, and the functional twin that graphs use for an in-place one."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._C import parse_schema

from softnpu import _C
from torch_npu import _errors
from torch_npu.ops._operator import (
    NAMESPACE,
    Operator,
    bind,
    library,
    mutable_arguments,
    register_fake,
    spread,
)


def register_out(operator: Operator, schema: str) -> None:
    """The out form: the kernel's results are copied into the mutable arguments, resized as PyTorch does."""
    parsed = parse_schema(f"{NAMESPACE}::{schema}")
    name = parsed.name.split("::")[-1] + "." + parsed.overload_name
    outs = mutable_arguments(parsed)
    extra = (
        {a.name for a in parsed.arguments} - {a.name for a in operator.schema.arguments} - set(outs)
    )
    library.define(schema)
    accept = getattr(operator.definition, "accept_out", None)

    def launch(*args: Any, **kwargs: Any) -> Any:
        targets = [kwargs.pop(n) for n in outs]
        rest = {n: kwargs.pop(n, None) for n in extra}
        if accept is not None:
            accept(**rest)
        results = operator.overload(*args, **kwargs)
        results = results if isinstance(results, (tuple, list)) else (results,)
        for target, result in zip(targets, results, strict=True):
            if target.dtype != result.dtype:
                bad = _errors.BadArgument(
                    outs[0], f"of dtype {result.dtype}", target.dtype, _errors.ErrCode.TYPE
                )
                raise _errors.operator_error(name, bad)
            target.resize_(result.shape).copy_(result)
        return tuple(targets) if len(targets) > 1 else targets[0]

    library.impl(name, launch, "CompositeExplicitAutograd")


def register_functional(
    operator: Operator, kernel: Callable[..., Any], mutable: Sequence[str]
) -> None:
    """In-place operators in graphs.

    AOTAutograd functionalises a mutating operator by itself, unless the operator returns its target, as
    upstream's in-place schemas do. Such a one gets a hidden twin that works on copies of the targets and
    returns them, and a Functionalize kernel that calls it.
    """
    name = f"_functional_{operator.name.replace('.', '_')}"
    arguments = re.search(r"\((.*)\) -> ", re.sub(r"\([a-z]!\)", "", str(operator.schema)))
    assert arguments is not None
    library.define(f"{name}({arguments[1]}) -> ({', '.join(['Tensor'] * len(mutable))})")

    def copied(*args: Any, **kwargs: Any) -> Any:
        values = bind(operator, args, kwargs)
        values.update({n: values[n].clone() for n in mutable})
        positional, keywords = spread(operator, values)
        kernel(*positional, **keywords)
        fresh = tuple(values[n] for n in mutable)
        return fresh if len(fresh) > 1 else fresh[0]

    def launch(*args: Any, **kwargs: Any) -> Any:
        return _C.run_kernel(operator.name, copied, args, kwargs, False)

    def functionalised(*args: Any, **kwargs: Any) -> Any:
        values = bind(operator, args, kwargs)
        fresh = getattr(torch.ops.npu, name)(*args, **kwargs)
        fresh = fresh if isinstance(fresh, tuple) else (fresh,)
        for target, value in zip(mutable, fresh, strict=True):
            values[target].copy_(value)
        returned = tuple(values[n] for n in mutable)
        return returned if len(returned) > 1 else returned[0]

    library.impl(name, launch, "PrivateUse1")
    register_fake(name, copied)
    library.impl(operator.name, functionalised, "Functionalize")
