"""Which operators a GE graph takes without a converter of their own: one node each, made from their schemas.

They are the core ATen set, what decomposes into it, the further ATen operators that upstream converts, collectives,
the operators of this package, and a program's own with a kernel for the device (on the card the operator's package
brings the node). Anything else needs `register_fx_node_ge_converter`, as on the card.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._ops import OpOverload

from softnpu import _C
from torch_npu.ops import _registry

_PREFIXES = (
    "_foreach_",
    "_fused_adam",
    "_fused_adagrad",
    "_fused_sgd",
    "_assert_",
    "_functional_",
    "sym_",
)
_LIBRARIES = ("air", "_c10d_functional", "_c10d_functional_autograd", "prims", "rngprims")


def by_schema(target: Any) -> bool:
    """Whether the operator becomes a node by its schema alone."""
    if not isinstance(target, OpOverload):
        return False
    if target.namespace == "aten":
        return _aten(target)
    return target.namespace in _LIBRARIES or target in _of_this_package() or _users(target)


def _users(target: OpOverload) -> bool:
    """Whether it is an operator of the program's, with a kernel for the device and no argument that GE cannot name."""
    on_device = torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "PrivateUse1")
    scalars = any("number" in str(a.type) for a in target._schema.arguments)
    return on_device and not scalars and target.namespace not in ("softnpu", "softnpu_host")


@functools.cache
def _aten(target: OpOverload) -> bool:
    name = target._schema.name.removeprefix("aten::")
    return (
        torch.Tag.core in target.tags
        or torch.Tag.nondeterministic_seeded in target.tags
        or target._schema.name in _graph_nodes()
        or name.startswith(_PREFIXES)
        or target in _decomposable()
        or target.is_view
    )


@functools.cache
def _graph_nodes() -> frozenset[str]:
    """ATen's operators that are neither core nor taken apart into core, and have nodes all the same."""
    return frozenset(n for n, traits in _C.operator_traits().items() if traits["graph_node"])


@functools.cache
def _decomposable() -> frozenset[Any]:
    from torch._decomp import core_aten_decompositions

    return frozenset(core_aten_decompositions())


@functools.cache
def _of_this_package() -> frozenset[Any]:
    """The package's operators, and the hidden forms in which graphs hold those that return what they write."""
    found = set()
    for operator in _registry.operators.values():
        found.add(operator.overload)
        hidden = f"_functional_{operator.name.replace('.', '_')}"
        if hasattr(torch.ops.npu, hidden):
            found.add(getattr(torch.ops.npu, hidden).default)
    return frozenset(found)
