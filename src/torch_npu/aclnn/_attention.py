"""Attention with statistics: the layouts' lengths are arrays, and the outputs begin with the statistics."""

from __future__ import annotations

import torch

from torch_npu.aclnn import aclnn

_INPUTS = "Tensor query, Tensor key, Tensor value"
_MASKS = "Tensor? pse, Tensor? drop_mask, Tensor? padding_mask, Tensor? atten_mask"
_LENGTHS = "int[]? actual_seq_qlen, int[]? actual_seq_kvlen"
_STARTS = "int[]? q_start_idx, int[]? kv_start_idx"
_OPTIONS = (
    "float scale, float keep_prob, int pre_tokens, int next_tokens, int head_num, str input_layout,"
    " int inner_precise, int sparse_mode, int pse_type"
)


def _options(
    pse, padding_mask, atten_mask, prefix, q_lengths, kv_lengths, q_start, kv_start, options
):
    """Number of heads and layout, the scale, and what attention and gradient take by the same names."""
    (
        scale,
        keep_prob,
        pre_tokens,
        next_tokens,
        head_num,
        layout,
        inner_precise,
        sparse_mode,
        pse_type,
    ) = options
    named = {
        "pse": pse,
        "padding_mask": padding_mask,
        "atten_mask": atten_mask,
        "keep_prob": keep_prob,
        "pre_tokens": pre_tokens,
        "next_tokens": next_tokens,
        "inner_precise": inner_precise,
        "prefix": prefix,
        "actual_seq_qlen": q_lengths,
        "actual_seq_kvlen": kv_lengths,
        "sparse_mode": sparse_mode,
        "pse_type": pse_type,
        "q_start_idx": q_start,
        "kv_start_idx": kv_start,
    }
    return (head_num, layout), scale, named


def _forward(
    query, key, value, pse, drop_mask, padding_mask, atten_mask, prefix, q_lengths, kv_lengths, q_start, kv_start,
    *options,
):  # fmt: skip
    heads, scale, named = _options(
        pse, padding_mask, atten_mask, prefix, q_lengths, kv_lengths, q_start, kv_start, options
    )
    out, largest, total, softmax = torch.ops.npu.npu_fusion_attention_v2(
        query, key, value, *heads, scale=scale, dropout_mask=drop_mask, **named
    )[:4]
    return largest, total, softmax if softmax.numel() else None, out


def _backward(
    query, key, value, dy, pse, drop_mask, padding_mask, atten_mask, softmax_max, softmax_sum, softmax_in,
    attention_in, prefix, q_lengths, kv_lengths, q_start, kv_start, *options,
):  # fmt: skip
    heads, scale, named = _options(
        pse, padding_mask, atten_mask, prefix, q_lengths, kv_lengths, q_start, kv_start, options
    )
    if drop_mask is not None and named["keep_prob"] < 1:
        raise NotImplementedError(
            "aclnnFlashAttentionScoreGradV2: a dropout mask of the program's own (keep_prob < 1) has no gradient here"
        )
    grads = torch.ops.npu.npu_fusion_attention_grad_v2(
        query,
        key,
        value,
        dy,
        *heads,
        softmax_max=softmax_max,
        softmax_sum=softmax_sum,
        softmax_in=softmax_in,
        attention_in=attention_in,
        scale_value=scale,
        **named,
    )[:4]
    return *grads[:3], grads[3] if grads[3].numel() else None


@aclnn(
    f"aclnnFlashAttentionScoreV2({_INPUTS}, {_MASKS}, int[]? prefix, {_STARTS}, {_OPTIONS})"
    " -> (Tensor, Tensor, Tensor?, Tensor)"
)
def flash_attention_score_v2(
    query, key, value, pse, drop_mask, padding_mask, atten_mask, prefix, q_start, kv_start, *options
):  # fmt: skip
    return _forward(
        query, key, value, pse, drop_mask, padding_mask, atten_mask, prefix, None, None, q_start, kv_start, *options
    )  # fmt: skip


@aclnn(
    f"aclnnFlashAttentionVarLenScoreV2({_INPUTS}, {_MASKS}, int[]? prefix, {_LENGTHS}, {_STARTS}, {_OPTIONS})"
    " -> (Tensor, Tensor, Tensor?, Tensor)"
)
def flash_attention_var_len_score_v2(*arguments):
    return _forward(*arguments)


_SAVED = "Tensor? softmax_max, Tensor? softmax_sum, Tensor? softmax_in, Tensor? attention_in, int[]? prefix"


@aclnn(
    f"aclnnFlashAttentionScoreGradV2({_INPUTS}, Tensor dy, {_MASKS}, {_SAVED}, {_STARTS}, {_OPTIONS})"
    " -> (Tensor, Tensor, Tensor, Tensor?)"
)
def flash_attention_score_grad_v2(*arguments):
    """Without the lengths of TND, which stand behind the thirteenth argument."""
    return _backward(*(arguments[:13] + (None, None) + arguments[13:]))


@aclnn(
    f"aclnnFlashAttentionUnpaddingScoreGradV2({_INPUTS}, Tensor dy, {_MASKS}, {_SAVED}, {_LENGTHS}, {_STARTS},"
    f" {_OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor?)"
)
def flash_attention_unpadding_score_grad_v2(*arguments):
    return _backward(*arguments)


@aclnn(
    "aclnnRingAttentionUpdate(Tensor prev_attn_out, Tensor prev_softmax_max, Tensor prev_softmax_sum,"
    " Tensor cur_attn_out, Tensor cur_softmax_max, Tensor cur_softmax_sum, Tensor? actual_seq_qlen,"
    " str? input_layout) -> (Tensor, Tensor, Tensor)"
)
def ring_attention_update(*arguments):
    tensors, actual_seq_qlen, input_layout = arguments[:6], arguments[6], arguments[7]
    return torch.ops.npu.npu_ring_attention_update(
        *tensors, actual_seq_qlen=actual_seq_qlen, input_layout=input_layout or "SBH"
    )
