"""Grouped products and feed-forward layers: lists may be null or empty, activations are numbers."""

from __future__ import annotations

import torch

from torch_npu.aclnn import aclnn

_LISTS = (
    "Tensor[] x, Tensor[] weight, Tensor[]? bias, Tensor[]? scale, Tensor[]? offset, Tensor[]? antiquant_scale,"
    " Tensor[]? antiquant_offset"
)


def _given(tensors):
    """A list that says something; an empty one, or one empty tensor, stands for none."""
    if not tensors or (len(tensors) == 1 and tensors[0].numel() == 0):
        return None
    return tensors


@aclnn(
    f"aclnnGroupedMatmulV2({_LISTS}, int[]? group_list, int split_item, int group_type) -> Tensor[]"
)
def grouped_matmul_v2(
    x, weight, bias, scale, offset, antiquant_scale, antiquant_offset, group_list, split_item, group_type
):  # fmt: skip
    """The group list has the sums up to each group."""
    groups = torch.tensor(group_list, device=x[0].device) if group_list else None
    return torch.ops.npu.npu_grouped_matmul(
        x,
        weight,
        bias=_given(bias),
        scale=_given(scale),
        offset=_given(offset),
        antiquant_scale=_given(antiquant_scale),
        antiquant_offset=_given(antiquant_offset),
        group_list=groups,
        split_item=split_item,
        group_type=group_type,
        output_dtype=_quantized_result(x, scale),
    )


@aclnn(
    f"aclnnGroupedMatmulV4({_LISTS}, Tensor[]? per_token_scale, Tensor? group_list, Tensor[]? activation_input,"
    " Tensor[]? activation_quant_scale, Tensor[]? activation_quant_offset, int split_item, int group_type,"
    " int group_list_type, int act_type) -> (Tensor[], Tensor[], Tensor[])"
)
def grouped_matmul_v4(
    x, weight, bias, scale, offset, antiquant_scale, antiquant_offset, per_token_scale, group_list, activation_input,
    activation_quant_scale, activation_quant_offset, split_item, group_type, group_list_type, act_type,
):  # fmt: skip
    """The outputs of activation and of dynamic quantization are reserved: nothing is written to them."""
    results = torch.ops.npu.npu_grouped_matmul(
        x,
        weight,
        bias=_given(bias),
        scale=_given(scale),
        offset=_given(offset),
        antiquant_scale=_given(antiquant_scale),
        antiquant_offset=_given(antiquant_offset),
        per_token_scale=_given(per_token_scale),
        group_list=group_list,
        activation_input=_given(activation_input),
        activation_quant_scale=_given(activation_quant_scale),
        activation_quant_offset=_given(activation_quant_offset),
        split_item=split_item,
        group_type=group_type,
        group_list_type=group_list_type,
        act_type=act_type,
        output_dtype=_quantized_result(x, scale),
    )
    return results, [], []


def _quantized_result(x, scale):
    """Products of int8 are wanted in the dtype of the scale; the others are as x."""
    if x[0].dtype != torch.int8 or not _given(scale):
        return None
    return torch.bfloat16 if scale[0].dtype == torch.bfloat16 else torch.float16


@aclnn(
    "aclnnFFNV3(Tensor x, Tensor weight1, Tensor weight2, Tensor? expert_tokens, Tensor? bias1, Tensor? bias2,"
    " Tensor? scale, Tensor? offset, Tensor? deq_scale1, Tensor? deq_scale2, Tensor? antiquant_scale1,"
    " Tensor? antiquant_scale2, Tensor? antiquant_offset1, Tensor? antiquant_offset2, str activation,"
    " int inner_precise, bool tokens_index_flag) -> Tensor"
)
def ffn_v3(
    x, weight1, weight2, expert_tokens, bias1, bias2, scale, offset, deq_scale1, deq_scale2, antiquant_scale1,
    antiquant_scale2, antiquant_offset1, antiquant_offset2, activation, inner_precise, tokens_index_flag,
):  # fmt: skip
    """`expert_tokens` are counts, or the sums up to each expert if `tokens_index_flag` is set."""
    tokens = None if expert_tokens is None else expert_tokens.tolist()
    return torch.ops.npu.npu_ffn(
        x,
        weight1,
        weight2,
        activation,
        expert_tokens=None if tokens_index_flag else tokens,
        expert_tokens_index=tokens if tokens_index_flag else None,
        bias1=bias1,
        bias2=bias2,
        scale=scale,
        offset=offset,
        deq_scale1=deq_scale1,
        deq_scale2=deq_scale2,
        antiquant_scale1=antiquant_scale1,
        antiquant_scale2=antiquant_scale2,
        antiquant_offset1=antiquant_offset1,
        antiquant_offset2=antiquant_offset2,
        inner_precise=inner_precise,
    )
