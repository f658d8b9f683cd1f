"""Operators of the host graph that stay whole: `softnpu_host::*`, CPU forms of what Inductor shall call, not fuse.

A lowered graph holds CPU tensors on the device's bytes. Three kinds of operators have no CPU kernel that means the
same there, so each gets a host operator with its schema, made when a graph first needs it:

- operators of torch_npu with a native kernel that is more than a formula, with arguments that they write, or with
  shapes that depend on data;
- random operators, which draw from the device's (seed, offset);
- operators of other libraries that know the npu device alone: they are called with NPU tensors on the same bytes.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload
from torch.fx.node import _side_effectful_functions, has_side_effect
from torch.utils import _pytree as pytree

from softnpu import _C
from torch_npu.ops import _registry
from torch_npu.ops._operator import Operator
from torchair._host import bodies

NAMESPACE = "softnpu_host"


class _Half(NamedTuple):
    """The body of a product's host operator: eager's own kernel for half precision, without Python."""

    original: str


_library = torch.library.Library(NAMESPACE, "FRAGMENT")  # noqa: TOR901
#: (kind, operator) -> its host operator; kinds are the functions below that make host operators
_host_operators: dict[tuple[str, OpOverload], OpOverload] = {}
_lock = threading.Lock()


def kernel_host_operator(operator: Operator) -> OpOverload:
    """The host operator that runs the operator's kernel on host tensors."""
    return _host_operator(
        "kernel", operator.overload, operator.as_function("body"), operator.as_function("shapes")
    )


def random_host_operator(overload: OpOverload) -> OpOverload:
    """The host operator of a random ATen operator: its numbers come from the device's generator."""
    return _host_operator("random", overload, bodies.seeded(overload), overload)


def device_host_operator(overload: OpOverload) -> OpOverload:
    """The host operator that calls the operator itself, with NPU tensors on the host tensors' bytes."""
    return _host_operator("device", overload, bodies.on_device(overload), overload)


def wide_host_operator(overload: OpOverload) -> OpOverload:
    """The host operator of a product for half precision: fp32 copies, one rounding, as eagerly.

    It stays whole because Inductor would drop the rounding between two casts, and with it eager's results.
    """
    if "attention" in overload.name():
        return _host_operator("wide", overload, bodies.widened(overload), overload)
    return _host_operator("wide", overload, _Half(overload.name()), overload)


def whole_host_operator(overload: OpOverload) -> OpOverload:
    """The host operator that runs the operator's own CPU kernel: Inductor calls it and fuses nothing with it."""
    return _host_operator("whole", overload, overload, overload)


def host_operator_of(overload: OpOverload) -> OpOverload | None:
    """The host operator for an operator that no CPU kernel can stand in for; None if the CPU's own will do."""
    if ("stand_in", overload) in _host_operators:
        return _host_operators["stand_in", overload]
    operator = _registry.operator_of(overload)
    if operator is not None:
        return (
            device_host_operator(overload)
            if operator.compiled == "device"
            else kernel_host_operator(operator)
        )
    if torch.Tag.nondeterministic_seeded in overload.tags and overload.namespace == "aten":
        return random_host_operator(overload)
    looks = overload.namespace == "npu" and overload in _side_effectful_functions
    if looks or overload.namespace == "_c10d_functional" or not _has_cpu_kernel(overload):
        return device_host_operator(overload)
    return None


def stand_in(
    overload: OpOverload, schema: str, body: Callable[..., Any], shapes: Callable[..., Any]
) -> None:
    """Gives an operator a host operator with a schema of its own."""
    with _lock:
        _host_operators["stand_in", overload] = _make(schema, overload.tags, body, shapes)


def restore(kind: str, name: str) -> None:
    """Makes the host operator of `namespace::name.overload` again, for code that was compiled in another process."""
    qualified, _, overload_name = name.partition(".")
    space, _, short = qualified.partition("::")
    overload = getattr(getattr(getattr(torch.ops, space), short), overload_name or "default")
    makers = {
        "random": random_host_operator,
        "wide": wide_host_operator,
        "device": device_host_operator,
        "whole": whole_host_operator,
        "kernel": host_operator_of,
    }
    if kind in makers:
        makers[kind](overload)


def originals(source: str) -> list[tuple[str, str]]:
    """The kinds and qualified names of the operators whose host operators the text calls."""
    return sorted(
        (kind, overload.name())
        for (kind, overload), made in _host_operators.items()
        if made._schema.name.replace("::", ".") in source
    )


def _has_cpu_kernel(overload: OpOverload) -> bool:
    name = overload.name()
    keys = (
        "CPU",
        "CompositeImplicitAutograd",
        "CompositeExplicitAutograd",
        "CompositeExplicitAutogradNonFunctional",
    )
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in keys)


def _host_operator(
    kind: str,
    overload: OpOverload,
    body: Callable[..., Any] | _Half | None,
    shapes: Callable[..., Any] | None,
) -> OpOverload:
    if body is None or shapes is None:
        raise TypeError(f"{overload} has no kernel")
    with _lock:
        if (kind, overload) not in _host_operators:
            _host_operators[kind, overload] = _define(kind, overload, body, shapes)
        return _host_operators[kind, overload]


def _define(
    kind: str,
    overload: OpOverload,
    body: Callable[..., Any] | _Half,
    shapes: Callable[..., Any],
) -> OpOverload:
    schema = overload._schema
    plain = f"{kind}_{schema.name.replace('::', '_')}"
    name = f"{plain}_{schema.overload_name}" if schema.overload_name else plain
    qualified = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
    text = str(schema).replace(qualified, name, 1)
    # Inductor calls by name, and `from` is no name in Python.
    made = _make(re.sub(r"\bfrom\b", "from_", text), overload.tags, body, shapes)
    if overload in _side_effectful_functions:
        has_side_effect(made)
    return made


def _make(
    schema: str, tags: Any, body: Callable[..., Any] | _Half, shapes: Callable[..., Any]
) -> OpOverload:
    name = schema.partition("(")[0]
    _library.define(schema, tags=tuple(tag for tag in tags if tag != torch.Tag.core))
    if isinstance(body, _Half):
        _C.implement_half(f"{NAMESPACE}::{name}", body.original)
    else:
        _library.impl(name, body, "CompositeExplicitAutograd")

    def fake(*args: Any, **kwargs: Any) -> Any:
        return pytree.tree_map_only(torch.Tensor, host_fake, shapes(*args, **kwargs))

    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_library, _stacklevel=2)
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def host_fake(fake: torch.Tensor) -> torch.Tensor:
    """The host's counterpart of a fake tensor: same geometry, device cpu. Called under the fake mode."""
    if fake.device.type == "cpu":
        return fake
    return torch.empty_strided(fake.size(), fake.stride(), dtype=fake.dtype, device="cpu")
