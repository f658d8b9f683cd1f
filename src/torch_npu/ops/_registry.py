"""One definition, four uses: turns an operator class into a dispatcher operator, a fake kernel, autograd and a name.

An operator is a class under `torch_npu/ops/<room>/<name>.py`:

    @npu_op("npu_x(Tensor self, float eps=1e-6) -> Tensor")
    class NpuX:
        '''formula, shapes, dtypes per chip, constraints, and how it differs from upstream'''

        def check(self, eps=1e-6): ...       # raises through `_check`; runs eagerly and under FakeTensor
        by_shape = True                      # optional: `check` looks at shapes, dtypes and plain values alone
        def kernel(self, eps=1e-6): ...      # the formula on plain tensors, one device task
        def native(self, eps=1e-6): ...      # optional: the fast form; `kernel` stays its oracle
        def meta(self, eps=1e-6): ...        # optional: shapes, where `kernel` cannot trace
        def backward(ctx, grad): ...         # optional: {"argument": gradient}; `saves` says what ctx keeps
        samples = [Sample(lambda make: (make(2, 8),), {"eps": 1e-5}), ...]

All these are plain functions (the first parameter is the operator's first argument, whatever its name), with
the parameters of the schema. `discover()` imports every file of every room; nobody keeps a list.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

import torch
from torch._C import parse_schema
from torch._prims_common import is_contiguous_or_false
from torch.utils._pytree import tree_map_only

from softnpu import _C, chips, settings
from torch_npu import _errors
from torch_npu.ops._autograd import autocast, register_autograd
from torch_npu.ops._forms import register_functional, register_out
from torch_npu.ops._operator import (
    NAMESPACE,
    Operator,
    Sample,
    function_of,
    library,
    mutable_arguments,
    register_fake,
    signature,
)

__all__ = [
    "Operator",
    "Sample",
    "discover",
    "exports",
    "kernel_generator",
    "npu_op",
    "operators",
    "public",
]

#: name (with overload) -> operator; filled by the decorator, read by exports, tests and docs
operators: dict[str, Operator] = {}

#: how many shapes an operator keeps that its check let pass
_REMEMBERED = 1024
_PLAIN = (torch.Tensor, torch.nn.Parameter)

#: name -> plain function that is exported beside the operators
_functions: dict[str, Callable[..., Any]] = {}


def npu_op(schema: str, *, out: str | None = None, export: bool = True) -> Callable[[type], type]:
    """Registers the class below it as the operator `npu::<schema>`.

    `out` is the schema of upstream's out form, whose mutable arguments receive the results in order.
    `export=False` keeps the name out of `torch_npu.*` (it stays in `torch.ops.npu`).
    """

    def register(definition: type) -> type:
        parsed = parse_schema(f"{NAMESPACE}::{schema}")
        name = parsed.name.split("::")[-1]
        label = f"{name}.{parsed.overload_name}" if parsed.overload_name else name
        operator = Operator(label, parsed, definition, export)
        operators[label] = operator
        tags = (torch.Tag.nondeterministic_seeded,) if getattr(definition, "random", False) else ()
        library.define(schema, tags=tags)
        _register(operator)
        if out is not None:
            register_out(operator, out)
        return definition

    return register


def public(function: Callable[..., Any]) -> Callable[..., Any]:
    """Exports a plain Python function, for the few names that are no operators upstream either."""
    _functions[function.__name__] = function
    return function


def discover() -> dict[str, Operator]:
    """Imports every operator file of every room and returns the operators by name."""
    package = importlib.import_module("torch_npu.ops")
    for room in pkgutil.iter_modules(package.__path__):
        if not room.ispkg:
            continue
        rooms = importlib.import_module(f"torch_npu.ops.{room.name}")
        for file in pkgutil.iter_modules(rooms.__path__):
            if not file.name.startswith("__"):
                importlib.import_module(f"torch_npu.ops.{room.name}.{file.name}")
    return operators


def exports() -> dict[str, Callable[..., Any]]:
    """The public functions: `torch_npu.<name>` for each operator, one per name whatever its overloads."""
    table: dict[str, Callable[..., Any]] = dict(_functions)
    for operator in operators.values():
        name = operator.schema.name.split("::")[-1]
        if operator.exported and name not in table:
            table[name] = _public(name, operator)
    return table


def kernel_generator() -> torch.Generator | None:
    """Inside a kernel: a CPU generator drawn from the device's (seed, offset), which it advances."""
    return _C.kernel_generator()


# --- from a class to the dispatcher ---------------------------------------------------------------------


def _register(operator: Operator) -> None:
    definition, name = operator.definition, operator.name
    kernel = function_of(definition, "kernel")
    if kernel is None:
        raise TypeError(f"{definition.__name__} has no kernel")
    check = _checked(operator, function_of(definition, "check"))
    library.impl(name, _device_kernel(operator, check), "PrivateUse1")
    shapes = function_of(definition, "meta") or kernel

    def fake(*args: Any, **kwargs: Any) -> Any:
        check(*args, **kwargs)
        return tree_map_only(torch.Tensor, _laid_out, shapes(*args, **kwargs))

    register_fake(name, fake)
    backward = function_of(definition, "backward")
    mutable = mutable_arguments(operator.schema)
    if backward is not None:
        register_autograd(operator, backward)
    elif mutable:
        _C.count_versions(operator.schema.name, operator.schema.overload_name)
    if any(r.alias_info is not None and r.alias_info.is_write for r in operator.schema.returns):
        register_functional(operator, kernel, mutable)
    policy = getattr(definition, "autocast", None)
    if policy is not None:
        library.impl(name, autocast(operator, policy), "AutocastPrivateUse1")


def _laid_out(made: torch.Tensor) -> torch.Tensor:
    """The card lays out what it makes by size alone; views of arguments stay as they are."""
    return made if made._is_view() or is_contiguous_or_false(made) else made.contiguous()


def _checked(operator: Operator, check: Callable[..., None] | None) -> Callable[..., None]:
    if check is None:
        return lambda *args, **kwargs: None

    if getattr(operator.definition, "by_shape", False):
        check = _remembering(check)

    def run(*args: Any, **kwargs: Any) -> None:
        if not settings.strict():
            return
        try:
            check(*args, **kwargs)
        except _errors.BadArgument as bad:
            raise _errors.operator_error(operator.name, bad) from None

    return run


def _remembering(check: Callable[..., None]) -> Callable[..., None]:
    """Asks the check once for the same shapes, dtypes and values on the same chip."""
    passed: set[Any] = set()

    def ask(*args: Any, **kwargs: Any) -> None:
        key = None if kwargs else _shapes(args)
        if key is not None and key in passed:
            return
        check(*args, **kwargs)
        if key is not None:
            if len(passed) >= _REMEMBERED:
                passed.clear()
            passed.add(key)

    return ask


def _shapes(args: tuple[Any, ...]) -> Any:
    """What a check by shape sees of plain arguments, on this chip; None if there is more to them."""
    key: list[Any] = [chips.current().name]
    for value in args:
        if type(value) in _PLAIN:
            key += (value.shape, value.dtype)
        elif value is None or type(value) in (bool, int, float, str):
            key.append(value)
        else:
            return None
    return tuple(key)


def _device_kernel(operator: Operator, check: Callable[..., None]) -> Callable[..., Any]:
    body = function_of(operator.definition, "native") or function_of(operator.definition, "kernel")
    name, host_ok = operator.name, getattr(operator.definition, "host_ok", False)

    def launch(*args: Any, **kwargs: Any) -> Any:
        check(*args, **kwargs)
        return _C.run_kernel(name, body, args, kwargs, host_ok, True)

    return launch


# --- the public name ------------------------------------------------------------------------------------


def _public(name: str, operator: Operator) -> Callable[..., Any]:
    call = function_of(operator.definition, "call")
    if call is not None:
        call.__name__ = call.__qualname__ = name
        call.__module__ = "torch_npu"
        call.__doc__ = operator.definition.__doc__
        return call
    packet = getattr(torch.ops.npu, name)

    def function(*args: Any, **kwargs: Any) -> Any:
        return packet(*args, **kwargs)

    function.__name__ = function.__qualname__ = name
    function.__module__ = "torch_npu"
    function.__doc__ = operator.definition.__doc__
    function.__signature__ = signature(operator.schema)  # type: ignore[attr-defined]
    for overload in packet.overloads():  # torch_npu.npu_x.out, as upstream's builtins have
        setattr(function, overload, getattr(packet, overload))
    return function
