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

from torch_npu.ops import _registry

#: ATen operators that are neither core nor taken apart into core, and have nodes all the same
_BEYOND_CORE = frozenset(
    [
        "_amp_foreach_non_finite_check_and_unscale",
        "_amp_foreach_non_finite_check_and_unscale_",
        "_amp_update_scale",
        "_batch_norm_no_update",
        "_batch_norm_with_update_functional",
        "_embedding_bag",
        "_embedding_bag_backward",
        "_embedding_bag_dense_backward",
        "_embedding_bag_forward_only",
        "_grouped_mm",
        "_int_mm",
        "_native_batch_norm_legit_functional",
        "_reshape_alias",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_efficient_attention_backward",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_backward",
        "_scaled_dot_product_fused_attention_overrideable",
        "_scaled_dot_product_fused_attention_overrideable_backward",
        "_thnn_fused_lstm_cell",
        "_thnn_fused_lstm_cell_backward_impl",
        "as_strided_scatter",
        "batch_norm_backward_elemt",
        "batch_norm_backward_reduce",
        "batch_norm_elemt",
        "batch_norm_gather_stats_with_counts",
        "batch_norm_stats",
        "bincount",
        "convolution_backward_overrideable",
        "convolution_overrideable",
        "copy_",
        "div",
        "erfinv",
        "grid_sampler_2d_backward",
        "grid_sampler_3d",
        "histc",
        "kthvalue",
        "lift_fresh_copy",
        "linalg_inv_ex",
        "linalg_vector_norm",
        "logcumsumexp",
        "matmul_backward",
        "max",
        "median",
        "min",
        "mode",
        "native_dropout",
        "native_dropout_backward",
        "new_empty_strided",
        "nanmedian",
        "randperm",
        "remainder",
        "replication_pad1d_backward",
        "replication_pad2d_backward",
        "replication_pad3d_backward",
        "reflection_pad1d_backward",
        "reflection_pad2d_backward",
        "reshape",
        "searchsorted",
        "set_",
        "sum",
        "unique_consecutive",
        "unique_dim",
        "_unique2",
        "upsample_nearest1d_backward",
        "upsample_nearest2d_backward",
        "upsample_nearest3d_backward",
        "view_as_complex",
        "view_as_real",
    ]
)
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
        or name in _BEYOND_CORE
        or name.startswith(_PREFIXES)
        or target in _decomposable()
        or target.is_view
    )


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
