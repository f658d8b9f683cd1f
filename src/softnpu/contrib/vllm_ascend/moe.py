"""Mixture of experts of `_C_ascend`: routing, and the activation between the projections."""

from __future__ import annotations

from typing import Any

import torch

from softnpu.contrib.vllm_ascend._define import ascend_op
from torch_npu.ops import _check as must
from torch_npu.ops.moe.npu_moe_gating_top_k import npu_moe_gating_top_k

__all__ = ["OPERATORS"]


def moe_gating_top_k(
    x: Any,
    k: int,
    k_group: int,
    group_count: int,
    group_select_mode: int,
    renorm: int,
    norm_type: int,
    out_flag: bool,
    routed_scaling_factor: float,
    eps: float,
    bias_opt: Any = None,
) -> tuple[Any, Any, Any]:
    """npu_moe_gating_top_k; renorm 1 divides the chosen weights of the softmax by their sum."""
    return torch.ops.npu.npu_moe_gating_top_k(
        x,
        k,
        bias=bias_opt,
        k_group=k_group,
        group_count=group_count,
        group_select_mode=group_select_mode,
        renorm=renorm,
        norm_type=norm_type,
        out_flag=out_flag,
        routed_scaling_factor=routed_scaling_factor,
        eps=eps,
    )


@ascend_op(
    "moe_gating_top_k_hash(Tensor x, int k, Tensor? bias=None, Tensor? input_ids=None, "
    "Tensor? tid2eid=None, int k_group=1, int group_count=1, float routed_scaling_factor=1.0, "
    "float eps=1e-20, int group_select_mode=0, int renorm=0, int norm_type=0, "
    "bool out_flag=False) -> (Tensor y, Tensor expert_idx, Tensor out)"
)
def moe_gating_top_k_hash(x, k, **rest):
    """`npu_moe_gating_top_k` with the third form of scores, the root of softplus, on every chip.

    With `input_ids` and `tid2eid` the experts of a token are looked up by its id.
    """
    return npu_moe_gating_top_k.as_function("body")(x, k, **rest)


@moe_gating_top_k_hash.meta
def _(x, k):
    made = x.new_empty(x.shape[0], k), x.new_empty(x.shape[0], k, dtype=torch.int32)
    return *made, x.new_empty(x.shape, dtype=torch.float32)


@moe_gating_top_k_hash.check
def _(x, k, bias, input_ids, tid2eid, k_group, group_count, **rest):
    must.dtype("x", x, torch.float16, torch.bfloat16, torch.float32)
    must.ndim("x", x, 2)
    rows, experts = x.shape
    must.hold(0 < experts <= 2048, "x", "of 1 to 2048 experts", experts)
    must.hold(group_count >= 1, "group_count", "at least 1", group_count)
    divides = experts % max(group_count, 1) == 0
    must.hold(divides, "group_count", f"a divisor of the {experts} experts", group_count)
    must.hold(1 <= k_group <= group_count, "k_group", f"from 1 to {group_count}", k_group)
    most = experts // group_count * k_group
    must.hold(1 <= k <= most, "k", f"from 1 to {most}", k)
    must.same_dtype("bias", bias, "x", x)
    must.shape("bias", bias, (experts,))
    for name, tensor in (("input_ids", input_ids), ("tid2eid", tid2eid)):
        must.dtype(name, tensor, torch.int32, torch.int64)
    if input_ids is not None:
        fits = input_ids.numel() == rows
        must.hold(fits, "input_ids", f"of {rows} elements", tuple(input_ids.shape))
        must.present("tid2eid", tid2eid, "with 'input_ids'")
        must.shape("tid2eid", tid2eid, (None, k))
    must.choice("group_select_mode", rest["group_select_mode"], (0, 1))
    must.choice("renorm", rest["renorm"], (0,))
    must.choice("norm_type", rest["norm_type"], (0, 1, 2))
    for name in ("eps", "routed_scaling_factor"):
        must.hold(rest[name] > 0, name, "positive", rest[name])


def npu_dequant_swiglu_quant(
    x: Any,
    weight_scale: Any = None,
    activation_scale: Any = None,
    bias: Any = None,
    quant_scale: Any = None,
    quant_offset: Any = None,
    group_index: Any = None,
    activate_left: bool = True,
    quant_mode: int = 0,
    swiglu_mode: int = 0,
    clamp_limit: float = 0.0,
    glu_alpha: float = 1.0,
    glu_bias: float = 0.0,
) -> tuple[Any, Any]:
    """torch_npu's operator of this name with other defaults."""
    return torch.ops.npu.npu_dequant_swiglu_quant(
        x,
        weight_scale=weight_scale,
        activation_scale=activation_scale,
        bias=bias,
        quant_scale=quant_scale,
        quant_offset=quant_offset,
        group_index=group_index,
        activate_left=activate_left,
        quant_mode=quant_mode,
        swiglu_mode=swiglu_mode,
        clamp_limit=clamp_limit,
        glu_alpha=glu_alpha,
        glu_bias=glu_bias,
    )


OPERATORS = {
    "moe_gating_top_k(Tensor x, int k, int k_group, int group_count, int group_select_mode, "
    "int renorm, int norm_type, bool out_flag, float routed_scaling_factor, float eps, "
    "Tensor? bias_opt=None) -> (Tensor y, Tensor expert_idx, Tensor out)": moe_gating_top_k,
    "npu_dequant_swiglu_quant(Tensor x, *, Tensor? weight_scale=None, "
    "Tensor? activation_scale=None, Tensor? bias=None, Tensor? quant_scale=None, "
    "Tensor? quant_offset=None, Tensor? group_index=None, bool activate_left=True, "
    "int quant_mode=0, int swiglu_mode=0, float clamp_limit=0.0, float glu_alpha=1.0, "
    "float glu_bias=0.0) -> (Tensor y, Tensor scale)": npu_dequant_swiglu_quant,
}
