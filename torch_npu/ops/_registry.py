"""One definition, four uses: turns an operator class into a dispatcher operator, a fake kernel, autograd and a name.

An operator is a class under `torch_npu/ops/<room>/<name>.py`:

    @npu_op("npu_x(Tensor self, float eps=1e-6) -> Tensor")
    class NpuX:
        '''formula, shapes, dtypes per chip, constraints, and how it differs from upstream'''

        def check(self, eps=1e-6): ...       # raises through `_check`; runs eagerly and under FakeTensor
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
import inspect
import pkgutil
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch._C import DispatchKey, FunctionSchema, parse_schema

from softnpu import _C, settings
from torch_npu import _errors

NAMESPACE = "npu"

#: name (with overload) -> operator; filled by the decorator, read by exports, tests and docs
operators: dict[str, Operator] = {}

#: name -> plain function that is exported beside the operators
_functions: dict[str, Callable[..., Any]] = {}

_library = torch.library.Library(NAMESPACE, "FRAGMENT")  # noqa: TOR901


@dataclass
class Sample:
    """Inputs that tests, opcheck, docs and benchmarks share.

    `build(make)` returns the positional arguments; `make(*shape, dtype=torch.float32, low=-1, high=1,
    requires_grad=False)` builds a tensor on the device under test (integers too, in [low, high)).
    `kwargs` may be a dict or a function of `make`.
    """

    build: Callable[..., tuple[Any, ...]]
    kwargs: dict[str, Any] | Callable[..., dict[str, Any]] = field(default_factory=dict)
    name: str = ""

    def inputs(self, make: Callable[..., torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        kwargs = self.kwargs(make) if callable(self.kwargs) else self.kwargs
        return self.build(make), dict(kwargs)


@dataclass
class Operator:
    """What the registry knows of one operator (one schema)."""

    name: str
    schema: FunctionSchema
    definition: type
    exported: bool = True

    @property
    def room(self) -> str:
        return self.definition.__module__.split(".")[-2]

    @property
    def overload(self) -> Any:
        packet = getattr(torch.ops.npu, self.schema.name.split("::")[-1])
        return getattr(packet, self.schema.overload_name or "default")


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
        _library.define(schema, tags=tags)
        _register(operator)
        if out is not None:
            _register_out(operator, out)
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


def _function(definition: type, name: str) -> Callable[..., Any] | None:
    """A function of the class as written, not bound: its first parameter is an operator argument."""
    raw = inspect.getattr_static(definition, name, None)
    return raw.__func__ if isinstance(raw, staticmethod) else raw


def _register(operator: Operator) -> None:
    definition, name = operator.definition, operator.name
    kernel = _function(definition, "kernel")
    if kernel is None:
        raise TypeError(f"{definition.__name__} has no kernel")
    check = _checked(operator, _function(definition, "check"))
    _library.impl(name, _device_kernel(operator, check), "PrivateUse1")
    shapes = _function(definition, "meta") or kernel

    def fake(*args: Any, **kwargs: Any) -> Any:
        check(*args, **kwargs)
        return shapes(*args, **kwargs)

    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_library, _stacklevel=2)
    backward = _function(definition, "backward")
    mutable = _mutable_arguments(operator.schema)
    if backward is not None:
        _register_autograd(operator, backward)
    elif mutable:
        _library.impl(name, _version_bump(operator, mutable), "ADInplaceOrView", with_keyset=True)
    if any(r.alias_info is not None and r.alias_info.is_write for r in operator.schema.returns):
        _register_functional(operator, kernel, mutable)
    policy = getattr(definition, "autocast", None)
    if policy is not None:
        _library.impl(name, _autocast(operator, policy), "AutocastPrivateUse1")


def _checked(operator: Operator, check: Callable[..., None] | None) -> Callable[..., None]:
    if check is None:
        return lambda *args, **kwargs: None

    def run(*args: Any, **kwargs: Any) -> None:
        if not settings.strict():
            return
        try:
            check(*args, **kwargs)
        except _errors.BadArgument as bad:
            raise _errors.operator_error(operator.name, bad) from None

    return run


def _device_kernel(operator: Operator, check: Callable[..., None]) -> Callable[..., Any]:
    body = _function(operator.definition, "native") or _function(operator.definition, "kernel")
    name, host_ok = operator.name, getattr(operator.definition, "host_ok", False)

    def launch(*args: Any, **kwargs: Any) -> Any:
        check(*args, **kwargs)
        return _C.run_kernel(name, body, args, kwargs, host_ok)

    return launch


def _register_out(operator: Operator, schema: str) -> None:
    """The out form: the kernel's results are copied into the mutable arguments, resized as PyTorch does."""
    parsed = parse_schema(f"{NAMESPACE}::{schema}")
    name = parsed.name.split("::")[-1] + "." + parsed.overload_name
    outs = _mutable_arguments(parsed)
    extra = {a.name for a in parsed.arguments} - {a.name for a in operator.schema.arguments} - set(outs)
    _library.define(schema)
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

    _library.impl(name, launch, "CompositeExplicitAutograd")


def _register_functional(
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
    _library.define(f"{name}({arguments[1]}) -> ({', '.join(['Tensor'] * len(mutable))})")

    def copied(*args: Any, **kwargs: Any) -> Any:
        values = _bind(operator, args, kwargs)
        values.update({n: values[n].clone() for n in mutable})
        positional, keywords = _spread(operator, values)
        kernel(*positional, **keywords)
        fresh = tuple(values[n] for n in mutable)
        return fresh if len(fresh) > 1 else fresh[0]

    def launch(*args: Any, **kwargs: Any) -> Any:
        return _C.run_kernel(operator.name, copied, args, kwargs, False)

    def functionalised(*args: Any, **kwargs: Any) -> Any:
        values = _bind(operator, args, kwargs)
        fresh = getattr(torch.ops.npu, name)(*args, **kwargs)
        fresh = fresh if isinstance(fresh, tuple) else (fresh,)
        for target, value in zip(mutable, fresh, strict=True):
            values[target].copy_(value)
        returned = tuple(values[n] for n in mutable)
        return returned if len(returned) > 1 else returned[0]

    _library.impl(name, launch, "PrivateUse1")
    torch.library.register_fake(f"{NAMESPACE}::{name}", copied, lib=_library, _stacklevel=2)
    _library.impl(operator.name, functionalised, "Functionalize")


def _mutable_arguments(schema: FunctionSchema) -> list[str]:
    return [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]


def _version_bump(operator: Operator, mutable: Sequence[str]) -> Callable[..., Any]:
    names = [a.name for a in operator.schema.arguments]

    def run(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        bound = dict(zip(names, args, strict=False)) | kwargs
        with torch._C._AutoDispatchBelowADInplaceOrView():
            result = operator.overload.redispatch(
                keyset & torch._C._after_ADInplaceOrView_keyset, *args, **kwargs
            )
        touched = [bound[n] for n in mutable if bound.get(n) is not None]
        for item in touched:
            torch.autograd.graph.increment_version(item)
        return result

    return run


# --- autograd -------------------------------------------------------------------------------------------


class _Call:
    """One call of an operator, with its tensors taken out so that autograd sees them all."""

    def __init__(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.values = _bind(operator, args, kwargs)
        self.places: list[tuple[str, int | None]] = []  # (argument, index in its list)
        self.tensors: list[torch.Tensor] = []
        for name, value in self.values.items():
            if isinstance(value, torch.Tensor):
                self.places.append((name, None))
                self.tensors.append(value)
            elif isinstance(value, (list, tuple)):
                for index, item in enumerate(value):
                    if isinstance(item, torch.Tensor):
                        self.places.append((name, index))
                        self.tensors.append(item)

    def filled(self, tensors: Sequence[Any]) -> dict[str, Any]:
        """The arguments by name, with these tensors in the places of the original ones."""
        values = {n: list(v) if isinstance(v, (list, tuple)) else v for n, v in self.values.items()}
        for (name, index), tensor in zip(self.places, tensors, strict=True):
            if index is None:
                values[name] = tensor
            else:
                values[name][index] = tensor
        return values


def _bind(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    arguments = operator.schema.arguments
    bound = {a.name: v for a, v in zip(arguments, args, strict=False)} | kwargs
    return {a.name: bound.get(a.name, a.default_value) for a in arguments}


def _spread(operator: Operator, values: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Arguments by name as the dispatcher takes them: positional ones, then keyword-only ones."""
    arguments = operator.schema.arguments
    positional = [values[a.name] for a in arguments if not a.kwarg_only]
    return positional, {a.name: values[a.name] for a in arguments if a.kwarg_only}


def _register_autograd(operator: Operator, backward: Callable[..., dict[str, Any]]) -> None:
    """`backward(ctx, *grads) -> {"argument": gradient}`.

    `ctx.args` holds the arguments by name and `ctx.outputs` the results; `saves` on the class (names of
    tensor arguments, and "output:<i>") limits what is kept alive, the default is every tensor argument.
    `non_differentiable` lists the outputs that carry no gradient though they are floating.
    `ctx.needs` tells by name which gradients are asked for. The gradient of a tensor list is a list.
    """
    saves = getattr(operator.definition, "saves", None)
    constant = getattr(operator.definition, "non_differentiable", ())
    mutable = _mutable_arguments(operator.schema)

    class Differentiate(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, call: _Call, keyset: Any, *tensors: Any) -> Any:
            values = call.filled(tensors)
            result = _below_autograd(operator, keyset, values)
            outputs = result if isinstance(result, (tuple, list)) else (result,)
            keep = [
                t
                for (name, _), t in zip(call.places, tensors, strict=True)
                if saves is None or name in saves
            ]
            wanted = [i for i in range(len(outputs)) if f"output:{i}" in (saves or ())]
            keep += [outputs[i] for i in wanted]
            fixed = [
                t
                for i, t in enumerate(outputs)
                if _is_tensor(t) and (i in constant or not t.is_floating_point())
            ]
            ctx.mark_non_differentiable(*fixed)
            if mutable:
                ctx.mark_dirty(*(values[n] for n in mutable if _is_tensor(values[n])))
            ctx.call, ctx.wanted, ctx.outputs = call, wanted, [None if _is_tensor(o) else o for o in outputs]
            ctx.set_materialize_grads(True)
            ctx.save_for_backward(*keep)
            call.tensors, call.values = [], call.filled([None] * len(tensors))
            return tuple(result) if isinstance(result, list) else result

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            call, saved = ctx.call, list(ctx.saved_tensors)
            tensors = [
                saved.pop(0) if saves is None or name in saves else None for name, _ in call.places
            ]
            outputs = list(ctx.outputs)
            for index in ctx.wanted:
                outputs[index] = saved.pop(0)
            needs: dict[str, bool] = {}
            for (name, _), need in zip(call.places, ctx.needs_input_grad[2:], strict=True):
                needs[name] = needs.get(name, False) or need
            view = SimpleNamespace(
                args=SimpleNamespace(**call.filled(tensors)), outputs=outputs, needs=needs
            )
            found = backward(view, *grads)
            chosen = []
            for (name, index), need in zip(call.places, ctx.needs_input_grad[2:], strict=True):
                gradient = found.get(name) if need else None
                chosen.append(gradient if index is None or gradient is None else gradient[index])
            return None, None, *chosen

    def run(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        call = _Call(operator, args, kwargs)
        if torch.is_grad_enabled() and any(t.requires_grad for t in call.tensors):
            return Differentiate.apply(call, keyset, *call.tensors)
        return _below_autograd(operator, keyset, call.values)

    _library.impl(operator.name, run, "Autograd", with_keyset=True)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _below_autograd(operator: Operator, keyset: Any, values: dict[str, Any]) -> Any:
    args, kwargs = _spread(operator, values)
    with torch._C._AutoDispatchBelowAutograd():
        result = operator.overload.redispatch(
            keyset & torch._C._after_autograd_keyset, *args, **kwargs
        )
    for name in _mutable_arguments(operator.schema):
        if _is_tensor(values[name]):
            torch.autograd.graph.increment_version(values[name])
    return result


# --- autocast -------------------------------------------------------------------------------------------


def _autocast(operator: Operator, policy: str) -> Callable[..., Any]:
    """`autocast = "lower" | "fp32" | "promote"` on a class: the documented list the operator is on."""
    off = torch._C.DispatchKeySet(DispatchKey.AutocastPrivateUse1)

    def run(*args: Any, **kwargs: Any) -> Any:
        tensors = [t for t in (*args, *kwargs.values()) if _castable(t)]
        if policy == "lower":
            to = torch.get_autocast_dtype("npu")
        elif policy == "fp32" or any(t.dtype == torch.float32 for t in tensors):
            to = torch.float32
        else:
            to = torch.get_autocast_dtype("npu")
        with torch._C._ExcludeDispatchKeyGuard(off):
            return operator.overload(
                *(_cast(a, to) for a in args), **{k: _cast(v, to) for k, v in kwargs.items()}
            )

    return run


def _castable(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.device.type == "npu"
        and value.dtype in (torch.float16, torch.bfloat16, torch.float32)
    )


def _cast(value: Any, to: torch.dtype) -> Any:
    return value.to(to) if _castable(value) else value


# --- the public name ------------------------------------------------------------------------------------


def _public(name: str, operator: Operator) -> Callable[..., Any]:
    call = _function(operator.definition, "call")
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
    function.__signature__ = _signature(operator.schema)  # type: ignore[attr-defined]
    for overload in packet.overloads():  # torch_npu.npu_x.out, as upstream's builtins have
        setattr(function, overload, getattr(packet, overload))
    return function


def _signature(schema: FunctionSchema) -> inspect.Signature:
    parameters = []
    for argument in schema.arguments:
        kind = (
            inspect.Parameter.KEYWORD_ONLY
            if argument.kwarg_only
            else inspect.Parameter.POSITIONAL_OR_KEYWORD
        )
        default = argument.default_value if argument.has_default_value() else inspect.Parameter.empty
        parameters.append(inspect.Parameter(argument.name, kind, default=default))
    return inspect.Signature(parameters)
