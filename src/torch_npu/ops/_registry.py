"""One definition, many uses: from plain functions to a dispatcher operator, a fake kernel, autograd and a name.

An operator is a file `torch_npu/ops/<folder>/<name>.py`:

    @npu_op("npu_x(Tensor self, float eps=1e-6) -> Tensor")
    def npu_x(self, eps):                 # the kernel: the formula on plain tensors, one device task
        '''formula, shapes, dtypes per chip, constraints, and how it differs from upstream'''

    @npu_x.check                          # raises through `_check`; runs eagerly and under FakeTensor
    def _(self): ...

    @npu_x.native                         # optional: the fast form; `npu_x.kernel` stays its oracle
    def _(self, eps): ...

    @npu_x.meta                           # optional: shapes, where the kernel cannot be traced
    def _(self): ...

    @npu_x.backward                       # optional: {"argument": gradient}
    def _(grad, *, self, eps): ...

    npu_x.samples = [Sample(lambda make: (make(2, 8),), {"eps": 1e-5}), ...]

Each part names only the arguments that it reads; defaults stand in the schema. `Operator` (in `_operator`) says what else
there is to say of an operator. `discover()` imports every file of every folder; nobody keeps a list.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.jit._builtins import _register_builtin
from torch.utils._pytree import tree_map_only

from softnpu import _C, torch_versions
from torch_npu import _errors
from torch_npu.ops import _enumerations, _forms
from torch_npu.ops._autograd import register_autocast
from torch_npu.ops._operator import NAMESPACE, Operator, Sample, library_of, register_fake
from torch_npu.ops._signatures import signature

__all__ = [
    "Operator",
    "Sample",
    "discover",
    "exports",
    "kernel_generator",
    "npu_op",
    "operator_of",
    "operators",
    "public",
]

#: name (with overload) -> operator; filled by the decorator, read by exports, tests and docs
operators: dict[str, Operator] = {}

#: name -> plain function that is exported beside the operators
_functions: dict[str, Callable[..., Any]] = {}


def npu_op(
    schema: str,
    *,
    out: str | None = None,
    functional: str | None = None,
    inplace: str | None = None,
    autocast: str | None = None,
    listed: bool = True,
    key: str = "PrivateUse1",
    **facts: Any,
) -> Callable[[Callable[..., Any]], Operator]:
    """Makes the function below it the kernel of the operator `npu::<schema>` (or of another namespace in the schema).

    Args:
        schema: upstream's schema; defaults stand here alone.
        out: the schema of the out form, whose mutable arguments receive the results in order.
        functional: the schema of the form that works on copies of the arguments that this one writes.
        inplace: the schema of the form that writes its result over the first argument.
        autocast: "lower", "fp32" or "promote": the list of `torch.autocast` that it is on.
        listed: False keeps it out of the table of operators (pages, exports, common tests).
        key: the dispatch key; CompositeExplicitAutograd for operators that take no tensor.
        facts: see `Operator`.
    """

    def register(kernel: Callable[..., Any]) -> Operator:
        operator = Operator(schema, kernel, **facts)
        _register(operator, listed, key)
        if out is not None:
            _forms.register_out(operator, out)
        if inplace is not None:
            over = _forms.inplace_form(operator, inplace)
            _register(over, listed, key)
            if over.returns_target:
                _forms.register_functionalize(over, operator)
        form = None
        if functional is not None:
            form = _forms.functional_form(operator, functional)
            _register(form, listed, key)
        if operator.returns_target and not operator.direct:
            if form is None:
                form = _forms.functional_form(operator, _forms.hidden_schema(operator), False)
                _register(form, False, key)
            _forms.register_functionalize(operator, form)
        if autocast is not None:
            register_autocast(operator, autocast)
        return operator

    return register


def public(function: Callable[..., Any]) -> Callable[..., Any]:
    """Exports a plain Python function, for the few names that are no operators upstream either."""
    _functions[function.__name__] = function
    return function


def discover() -> dict[str, Operator]:
    """Imports every operator file of every folder and returns the operators by name."""
    package = importlib.import_module("torch_npu.ops")
    for folder in pkgutil.iter_modules(package.__path__):
        if not folder.ispkg:
            continue
        files = importlib.import_module(f"torch_npu.ops.{folder.name}")
        for file in pkgutil.iter_modules(files.__path__):
            if not file.name.startswith("__"):
                importlib.import_module(f"torch_npu.ops.{folder.name}.{file.name}")
    for operator in operators.values():
        operator.validate()
        if operator.mutable and "backward" not in operator.parts:
            _C.count_versions(operator.schema.name, operator.schema.overload_name)
    for namespace in {o.namespace for o in operators.values()}:
        _C.resolve_bits(namespace)
    _C.sanitizer_cannot_capture([o.base for o in operators.values() if o.aclop])
    for namespace, base in {(o.namespace, o.base) for o in operators.values()}:
        _enumerations.protect(getattr(getattr(torch.ops, namespace), base))
    return operators


def operator_of(overload: torch._ops.OpOverload) -> Operator | None:
    """The operator behind `torch.ops.<namespace>.<name>.<overload>`, if it is one of these."""
    name = overload.name().removesuffix(".default").removeprefix(f"{NAMESPACE}::")
    return operators.get(name)


def exports() -> dict[str, Callable[..., Any]]:
    """The public functions: `torch_npu.<name>` for each operator, one per name whatever its overloads."""
    table: dict[str, Callable[..., Any]] = dict(_functions)
    for operator in operators.values():
        if operator.exported and operator.base not in table:
            table[operator.base] = _public(operator)
    return table


def kernel_generator(given: torch.Generator | None = None) -> torch.Generator | None:
    """Inside a kernel: a CPU generator drawn from the (seed, offset) of the given one or of the device's, which it advances."""
    return _C.kernel_generator(given)


# --- to the dispatcher ----------------------------------------------------------------------------------


def _register(operator: Operator, listed: bool, key: str) -> None:
    if listed:
        operators[operator.name] = operator
    library = library_of(operator.namespace)
    seeded = (torch.Tag.nondeterministic_seeded,) if operator.random else ()
    library.define(str(operator.schema).partition("::")[2], tags=seeded)
    library.impl(operator.local, _launch(operator), key)
    register_fake(operator, operator.local, _fake(operator))
    if operator.hf32 or operator.infinite:
        _C.add_operator_traits(operator.schema.name, operator.hf32, operator.infinite)


def _launch(operator: Operator) -> Callable[..., Any]:
    """The operator on the device; one about memory gets its NPU tensors as they are, and is no device task."""
    name, host_ok, nothing = operator.name, operator.host_ok, {}  # type: ignore[var-annotated]
    direct = operator.direct

    def launch(*args: Any, **kwargs: Any) -> Any:
        values = operator.bind(args, kwargs)
        operator.run_check(values)
        try:
            if direct:
                return operator.body(*values)
            return _C.run_kernel(name, operator.body, values, nothing, host_ok, True)
        except _errors.BadArgument as bad:  # what only the data or the storage can tell
            raise _errors.operator_error(name, bad) from None
        except IndexError as wrong:
            raise _errors.index_error(name, wrong) from None

    return launch


def _fake(operator: Operator) -> Callable[..., Any]:
    def fake(*args: Any, **kwargs: Any) -> Any:
        values = operator.bind(args, kwargs)
        operator.run_check(values)
        if not operator.host_ok:
            _check_meta(values)
        made = operator.shapes(*values)
        return made if operator.direct else tree_map_only(torch.Tensor, _laid_out, made)

    return fake


def _check_meta(values: Sequence[Any]) -> None:
    """Meta tensors have no values to go with tensors that have; on the device, the launch looks at this."""
    found: dict[str, torch.device] = {}
    for value in values:
        for one in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(one, torch.Tensor) and one.dim():
                found.setdefault("meta" if one.is_meta else "real", one.device)
    if len(found) > 1:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{found['real']} and meta!"
        )


def _laid_out(made: torch.Tensor) -> torch.Tensor:
    """The card lays out what it makes by size alone; views of arguments stay as they are."""
    return (
        made
        if made._is_view() or torch_versions.is_contiguous_or_false(made)
        else made.contiguous()
    )


# --- the public name ------------------------------------------------------------------------------------


def _public(operator: Operator) -> Callable[..., Any]:
    call, name = operator.parts.get("call"), operator.base
    if call is None:
        packet = getattr(getattr(torch.ops, operator.namespace), name)

        def call(*args: Any, **kwargs: Any) -> Any:
            return packet(*args, **kwargs)

        call.__signature__ = signature(operator.schema)  # type: ignore[attr-defined]
        for overload in packet.overloads():  # torch_npu.npu_x.out, as upstream's builtins have
            setattr(call, overload, getattr(packet, overload))
    _register_builtin(call, operator.schema.name)  # torch.jit.script calls the operator
    call.__name__ = call.__qualname__ = name
    call.__module__ = "torch_npu"
    call.__doc__ = operator.__doc__
    return call
