"""Operators leave the first size of their input dynamic: a graph that was traced for one batch serves another."""

from __future__ import annotations

import pytest
import sympy
import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils import _pytree as pytree

import torchair  # noqa: F401
from tests.ops.support import make
from torch_npu.ops._registry import operators

#: operators whose first size decides more than the size of a result
FIXED = {
    "npu_fusion_attention": "numels, an integer result, is the product of sizes",
    "npu_fusion_attention_v2": "shapes of pse are compared as a whole",
    "npu_fusion_attention_grad_v2": "shapes of pse are compared as a whole",
    "npu_rotated_box_encode": "each column is a box",
    "npu_rotated_box_decode": "each column is a box",
    "npu_multi_head_attention_backward": "the batch and the lengths share a dimension",
    "npu_diou_backward": "boxes are columns",
    "npu_ciou_backward": "boxes are columns",
    "_npu_ciou": "boxes are columns",
    "npu_advance_step_flashattn": "its number of sequences is an argument",
    "npu_alltoallv_gmm": "lists of integers give the rows of each rank",
    "npu_bmm_v2_mat1_backward": "sizes are an argument",
    "npu_bounding_box_decode": "each row is a box",
    "npu_broadcast": "sizes are an argument",
    "npu_ciou": "boxes are columns",
    "npu_diou": "boxes are columns",
    "npu_ffn": "lists of integers give the rows of each expert",
    "npu_fused_infer_attention_score": "lists of integers give the lengths of each sequence",
    "npu_fused_infer_attention_score_v2": "lists of integers give the lengths of each sequence",
    "npu_giou": "boxes are rows or columns, as the sizes say",
    "npu_gmm_alltoallv": "lists of integers give the rows of each rank",
    "npu_grouped_matmul.List": "a list of integers gives the rows of each group",
    "npu_incre_flash_attention": "lists of integers give the lengths of each sequence",
    "npu_indexing": "slices of the size are integers",
    "npu_max_backward": "sizes are an argument",
    "npu_min_backward": "sizes are an argument",
    "npu_moe_token_permute_with_routing_map_grad": "the number of tokens is an argument",
    "npu_moe_token_unpermute_with_routing_map_grad": "sizes are an argument",
}
NAMES = sorted(name for name, one in operators.items() if one.samples)


def first_size(name):
    """The symbol of the first tensor's first size, and what the operator's shape function made of it."""
    environment = ShapeEnv()
    mode = FakeTensorMode(shape_env=environment, allow_non_fake_inputs=True)
    args, kwargs = operators[name].samples[0].inputs(make)
    leaves, spec = pytree.tree_flatten((args, kwargs))
    symbol = None
    for position, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            sizes = [DimDynamic.DYNAMIC] * leaf.dim()
            leaves[position] = mode.from_tensor(
                leaf.detach(),
                symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes),
                source=ConstantSource(f"t{position}"),
            )
            size = leaves[position].shape[0] if symbol is None and leaf.dim() > 0 else None
            symbol = size.node.expr if isinstance(size, torch.SymInt) else symbol
    args, kwargs = pytree.tree_unflatten(leaves, spec)
    with mode, enable_python_dispatcher():
        operators[name].overload(*args, **kwargs)
    return symbol, environment


def fixed_among(names):
    found = set()
    for name in names:
        with operators[name].on_its_chip():
            symbol, environment = first_size(name)
        if symbol is not None and isinstance(environment.replace(symbol), sympy.Integer):
            found.add(name)
    return found


def test_first_sizes_stay_dynamic():
    """The operators of decoders, mixtures of experts and training."""
    names = (
        "npu_add_rms_norm npu_dropout npu_dynamic_quant npu_moe_finalize_routing npu_moe_gating_top_k "
        "npu_moe_gating_top_k_softmax npu_moe_init_routing npu_rms_norm npu_rotary_mul npu_swiglu"
    )
    assert fixed_among(set(names.split()) & set(NAMES)) == set()


@pytest.mark.slow
def test_first_sizes_of_all_operators_stay_dynamic():
    assert fixed_among(NAMES) <= set(FIXED)
