"""npu_fusion_attention_v2 and npu_fusion_attention_grad_v2: attention for training, with rope parts and ALiBi."""

from __future__ import annotations

import torch

from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.attention import _fusion, _fusion_formula, _fusion_native, _fusion_rules
from torch_npu.ops.attention._fusion import Attention


@npu_op(
    "npu_fusion_attention_v2(Tensor query, Tensor key, Tensor value, int head_num, str input_layout, *,"
    " Tensor? pse=None, Tensor? padding_mask=None, Tensor? atten_mask=None, Tensor? query_rope=None,"
    " Tensor? key_rope=None, float scale=1., float keep_prob=1., int pre_tokens=2147483647,"
    " int next_tokens=2147483647, int inner_precise=0, int[]? prefix=None, int[]? actual_seq_qlen=None,"
    " int[]? actual_seq_kvlen=None, int sparse_mode=0, bool gen_mask_parallel=True, bool sync=False,"
    " int pse_type=1, int[]? q_start_idx=None, int[]? kv_start_idx=None,"
    ' str softmax_layout="", Tensor? sink=None, Tensor? dropout_mask=None, int seed=0, int offset=0)'
    " -> (Tensor, Tensor, Tensor, Tensor, int, int, int)",
    output_differentiability=(True, True, True, True, False, False, False),
    ge="FlashAttentionScore",
    core="MIX_AIC",
)
def npu_fusion_attention_v2(**arguments):
    r"""`npu_fusion_attention` with two more features.

    $$ S = scale \cdot (pse + Q K^T) \quad\text{or}\quad S = scale \cdot Q K^T + pse $$

    Args (besides those of `npu_fusion_attention`; pre_tokens and next_tokens are its pre_tockens and next_tockens):
        query_rope, key_rope: more of each head, (T, N, Dr) and (T, Nkv, Dr) in TND (other layouts on A5 only): the
            scores are those of query and query_rope joined along the head with key and key_rope joined.
        pse_type: 0 adds pse after scaling, 1 before. 2 and 3 take pse as ALiBi's slopes, float32 (N) or (B, N), and
            add -slope |j - i| or -slope sqrt|j - i| after scaling.
        q_start_idx, kv_start_idx: one number each: where the first row and column stand in the whole sequence
            (pse_type 2 and 3).

    Returns:
        What `npu_fusion_attention` does.

    Differs from upstream: as `npu_fusion_attention`.
    """
    return _fusion.seven_outputs(Attention(**arguments), _fusion_formula.formula)


@npu_fusion_attention_v2.check
def _(**arguments):
    _fusion_rules.check(Attention(**arguments, before="pre_tokens", after="next_tokens"))


@npu_fusion_attention_v2.native
def _(**arguments):
    return _fusion.seven_outputs(Attention(**arguments), _fusion_native.native)


@npu_fusion_attention_v2.meta
def _(**arguments):
    return _fusion.seven_outputs(Attention(**arguments), Attention.outputs)


@npu_fusion_attention_v2.backward
def _(
    dy,
    *_,
    query,
    key,
    value,
    head_num,
    input_layout,
    pse,
    padding_mask,
    atten_mask,
    query_rope,
    key_rope,
    scale,
    keep_prob,
    pre_tokens,
    next_tokens,
    inner_precise,
    prefix,
    actual_seq_qlen,
    actual_seq_kvlen,
    sparse_mode,
    gen_mask_parallel,
    sync,
    pse_type,
    q_start_idx,
    kv_start_idx,
    softmax_layout,
    sink,
    results,
):
    out, peak, total, softmax_in, seed, offset, numels = results
    dq, dk, dv, dpse, dq_rope, dk_rope, dsink = torch.ops.npu.npu_fusion_attention_grad_v2(
        query, key, value, dy, head_num, input_layout, pse=pse, padding_mask=padding_mask,
        atten_mask=atten_mask, softmax_max=peak, softmax_sum=total, softmax_in=softmax_in, attention_in=out,
        query_rope=query_rope, key_rope=key_rope, scale_value=scale, keep_prob=keep_prob,
        pre_tokens=pre_tokens, next_tokens=next_tokens, inner_precise=inner_precise, seed=seed,
        offset=offset, numels=numels, prefix=prefix, actual_seq_qlen=actual_seq_qlen,
        actual_seq_kvlen=actual_seq_kvlen, sparse_mode=sparse_mode, gen_mask_parallel=gen_mask_parallel,
        sync=sync, pse_type=pse_type, q_start_idx=q_start_idx, kv_start_idx=kv_start_idx,
        softmax_layout=softmax_layout, sink=sink,
    )  # fmt: skip
    return {
        "query": dq, "key": dk, "value": dv, "pse": dpse, "query_rope": dq_rope, "key_rope": dk_rope,
        "sink": dsink,
    }  # fmt: skip


npu_fusion_attention_v2.samples = [
    Sample(
        lambda make: (make(2, 2, 12, 16), make(2, 2, 12, 16), make(2, 2, 12, 16), 2, "BNSD"),
        lambda make: {"pse": make(2), "pse_type": 2, "q_start_idx": [4], "kv_start_idx": [0]},
        "ALiBi",
    ),
    Sample(
        lambda make: (
            *(make(*shape).bfloat16() for shape in ((9, 2, 16), (12, 1, 16), (12, 1, 8))),
            *(2, "TND"),
        ),
        lambda make: {
            "query_rope": make(9, 2, 8).bfloat16(),
            "key_rope": make(12, 1, 8).bfloat16(),
            "atten_mask": make(9, 12, dtype=torch.bool),
            "actual_seq_qlen": [4, 9],
            "actual_seq_kvlen": [5, 12],
        },
        "rope",
    ),
]


def _backward_of(
    query, key, value, dy, head_num, input_layout, *, softmax_max=None, softmax_sum=None, softmax_in=None,
    attention_in=None, scale_value=1.0, numels=0, **options,
) -> tuple[_fusion.Attention, _fusion.Saved]:  # fmt: skip
    """The forward that a gradient belongs to, and what else the gradient is computed from."""
    options |= {"scale": scale_value, "before": "pre_tokens", "after": "next_tokens"}
    a = Attention(query, key, value, head_num, input_layout, **options)
    return a, _fusion.Saved(dy, softmax_max, softmax_sum, softmax_in, attention_in, numels)


@npu_op(
    "npu_fusion_attention_grad_v2(Tensor query, Tensor key, Tensor value, Tensor dy, int head_num, str input_layout,"
    " *, Tensor? pse=None, Tensor? padding_mask=None, Tensor? atten_mask=None, Tensor? softmax_max=None,"
    " Tensor? softmax_sum=None, Tensor? softmax_in=None, Tensor? attention_in=None, Tensor? query_rope=None,"
    " Tensor? key_rope=None, float scale_value=1., float keep_prob=1., int pre_tokens=2147483647,"
    " int next_tokens=2147483647, int inner_precise=0, int seed=0, int offset=0, int numels=0, int[]? prefix=None,"
    " int[]? actual_seq_qlen=None, int[]? actual_seq_kvlen=None, int sparse_mode=0, bool gen_mask_parallel=True,"
    " bool sync=False, int pse_type=1, int[]? q_start_idx=None, int[]? kv_start_idx=None,"
    ' str softmax_layout="", Tensor? sink=None)'
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    ge="FlashAttentionScoreGrad",
    core="MIX_AIC",
)
def npu_fusion_attention_grad_v2(**arguments):
    """Gradients of `npu_fusion_attention_v2` for query, key, value, pse, query_rope, key_rope and sink.

    The arguments are those of the forward, `dy` the gradient of attention_out, and softmax_max, softmax_sum,
    softmax_in, attention_in, seed, offset and numels what the forward returned. The gradient of an argument that was
    not given is an empty tensor.
    """
    return _fusion.gradients(
        *_backward_of(**arguments), _fusion_formula.formula_gradients, _fusion.WITH_ROPE
    )


@npu_fusion_attention_grad_v2.check
def _(**arguments):
    _fusion_rules.check_gradient(*_backward_of(**arguments))


@npu_fusion_attention_grad_v2.native
def _(**arguments):
    return _fusion.gradients(
        *_backward_of(**arguments), _fusion_native.native_gradients, _fusion.WITH_ROPE
    )


@npu_fusion_attention_grad_v2.meta
def _(**arguments):
    return _fusion.gradients(*_backward_of(**arguments), _fusion.no_gradients, _fusion.WITH_ROPE)


npu_fusion_attention_grad_v2.samples = [
    Sample(
        lambda make: (*(make(1, 8, 32) for _ in range(4)), 2, "BSH"),
        lambda make: {
            "softmax_max": make(1, 2, 8, 8, low=9, high=10),
            "softmax_sum": make(1, 2, 8, 8, low=8, high=9),
            "attention_in": make(1, 8, 32),
            "pse": make(2),
            "pse_type": 3,
        },
    ),
]
