"""npu_fusion_attention and npu_fusion_attention_grad: attention for training."""

from __future__ import annotations

import torch

from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.attention import (
    _fusion,
    _fusion_formula,
    _fusion_native,
    _fusion_rules,
    _fusion_sharding,
)
from torch_npu.ops.attention._fusion import Attention


def _attention(
    query, key, value, head_num, input_layout, pse=None, padding_mask=None, atten_mask=None, scale=1.0,
    keep_prob=1.0, pre_tockens=2147483647, next_tockens=2147483647, inner_precise=0, prefix=None,
    actual_seq_qlen=None, actual_seq_kvlen=None, sparse_mode=0, gen_mask_parallel=True, sync=False,
    softmax_layout="", sink=None, dropout_mask=None, seed=0, offset=0,
):  # fmt: skip
    """The forward's arguments, as upstream orders them."""
    return Attention(
        query, key, value, head_num, input_layout, pse, padding_mask, atten_mask, None, None, scale, keep_prob,
        pre_tockens, next_tockens, inner_precise, prefix, actual_seq_qlen, actual_seq_kvlen, sparse_mode,
        gen_mask_parallel, sync, softmax_layout=softmax_layout, sink=sink, dropout_mask=dropout_mask, seed=seed,
        offset=offset, before="pre_tockens", after="next_tockens",
    )  # fmt: skip


def _causal_mask(make):
    """The compressed mask of the causal modes."""
    return make(2048, 2048, low=1, high=2).triu(1).bool()


@npu_op(
    "npu_fusion_attention(Tensor query, Tensor key, Tensor value, int head_num, str input_layout,"
    " Tensor? pse=None, Tensor? padding_mask=None, Tensor? atten_mask=None, float scale=1.,"
    " float keep_prob=1., int pre_tockens=2147483647, int next_tockens=2147483647, int inner_precise=0,"
    " int[]? prefix=None, int[]? actual_seq_qlen=None, int[]? actual_seq_kvlen=None, int sparse_mode=0,"
    ' bool gen_mask_parallel=True, bool sync=False, str softmax_layout="", Tensor? sink=None,'
    " Tensor? dropout_mask=None, int seed=0, int offset=0)"
    " -> (Tensor, Tensor, Tensor, Tensor, int, int, int)",
    output_differentiability=(True, True, True, True, False, False, False),
    ge="FlashAttentionScore",
    core="MIX_AIC",
)
def npu_fusion_attention(**arguments):
    r"""Attention for training, blocked: no matrix of scores is ever held.

    $$ O = \mathrm{dropout}(\mathrm{softmax}(\mathrm{mask}(scale \cdot (pse + Q K^T))), keep\_prob)\, V $$

    Args:
        query: float16, bfloat16 or float32, in the layout that `input_layout` names.
        key, value: the same dtype and layout. The heads of key divide those of query (each serves a group), and the
            head size of value is at most that of query and key, which is at most 768.
        head_num: the heads of query.
        input_layout: BSH, SBH, BSND, BNSD or TND (in TND the sequences of all batches lie one after the other).
        pse: added to Q K^T before it is scaled; (B, N, Sq, Skv), (B, N, 1, Skv) or (1, N, Sq, Skv), the dtype of query.
            With Sq = Skv > 1024 (or TND) in the causal modes also the last 1024 rows of an ALiBi matrix,
            (B or 1, N, 1024, Skv).
        padding_mask: reserved.
        atten_mask: bool or uint8, nonzero where a key is hidden; (B, N, Sq, Skv), (B, 1, Sq, Skv), (1, 1, Sq, Skv)
            or (Sq, Skv), in TND (max Sq, max Skv) or (all Sq, all Skv). Modes 2, 3, 4, 7 and 8 take the compressed
            triangle (2048, 2048),
            True above the diagonal, and mode 6 that triangle over (1024, 2048), True in its right half.
        scale: the factor of the scores.
        keep_prob: the probability that dropout keeps a weight, above 0 and at most 1.
        pre_tockens, next_tockens: row i sees columns from i - pre_tockens to i + next_tockens, counted from the upper
            left corner in mode 0 and from the lower right one in modes 4, 7 and 8.
        inner_precise: 0, 1 or 2; 2 asks for exact rows where all keys are hidden, which is always so here.
        prefix: for each batch the columns that every row sees (modes 5 and 6).
        actual_seq_qlen, actual_seq_kvlen: in TND where each sequence ends; zeros at the tail are batches left out.
        sparse_mode: 0 mask and band, 1 mask alone, 2 causal from the upper left, 3 causal from the lower right, 4 band,
            5 and 6 mode 3 and a prefix, 7 mode 3 whose last sequence is a band, 8 mode 2 whose first sequence is a band
            (the last two in TND). Without atten_mask every mode computes everything.
        gen_mask_parallel, sync: how the card schedules the dropout mask; they do not change the result.
        softmax_layout: "TND" orders softmax_max and softmax_sum of TND by row; "" by sequence, head and row.
        sink: float32 (N,): for each head a logit that takes its share of the softmax and has no value.
        dropout_mask: uint8, one bit for each weight, the lowest of a byte first, set where kept; the gradient is
            computed from seed and offset, so pass those it was made with.
        seed, offset: where dropout's numbers begin; with seed 0 the device's generator chooses.

    Returns:
        attention_out, softmax_max and softmax_sum (float32, (B, N, Sq, 8) or (T, N, 8)), an empty tensor, the seed,
        the offset and the number of weights. A row with all keys hidden gives 0, with the lowest and the largest
        float32 for softmax_max and softmax_sum.

    Differs from upstream: dropout keeps other positions than the card for the same seed; a row with all keys hidden is
    0 whatever inner_precise says; the gradient of pse is computed, where the card leaves it undefined.
    """
    return _fusion.seven_outputs(_attention(**arguments), _fusion_formula.formula)


@npu_fusion_attention.check
def _(**arguments):
    _fusion_rules.check(_attention(**arguments))


@npu_fusion_attention.native
def _(**arguments):
    return _fusion.seven_outputs(_attention(**arguments), _fusion_native.native)


@npu_fusion_attention.meta
def _(**arguments):
    return _fusion.seven_outputs(_attention(**arguments), Attention.outputs)


@npu_fusion_attention.backward
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
    scale,
    keep_prob,
    pre_tockens,
    next_tockens,
    inner_precise,
    prefix,
    actual_seq_qlen,
    actual_seq_kvlen,
    sparse_mode,
    gen_mask_parallel,
    sync,
    softmax_layout,
    sink,
    results,
):
    out, peak, total, softmax_in, seed, offset, numels = results
    dq, dk, dv, dpse, dsink = torch.ops.npu.npu_fusion_attention_grad(
        query, key, value, dy, head_num, input_layout, pse=pse, padding_mask=padding_mask,
        atten_mask=atten_mask, softmax_max=peak, softmax_sum=total, softmax_in=softmax_in, attention_in=out,
        scale_value=scale, keep_prob=keep_prob, pre_tockens=pre_tockens, next_tockens=next_tockens,
        inner_precise=inner_precise, seed=seed, offset=offset, numels=numels, prefix=prefix,
        actual_seq_qlen=actual_seq_qlen, actual_seq_kvlen=actual_seq_kvlen, sparse_mode=sparse_mode,
        gen_mask_parallel=gen_mask_parallel, sync=sync, softmax_layout=softmax_layout, sink=sink,
    )  # fmt: skip
    return {"query": dq, "key": dk, "value": dv, "pse": dpse, "sink": dsink}


@npu_fusion_attention.sharding
def _(**arguments):
    yield from _fusion_sharding.forward(7, arguments)


npu_fusion_attention.samples = [
    Sample(
        lambda make: (make(2, 16, 64), make(2, 24, 64), make(2, 24, 64), 4, "BSH"),
        {"scale": 0.25},
    ),
    Sample(
        lambda make: (make(1, 4, 33, 16), make(1, 2, 33, 16), make(1, 2, 33, 16), 4, "BNSD"),
        lambda make: {"scale": 0.25, "sparse_mode": 2, "atten_mask": _causal_mask(make)},
        "causal, grouped heads",
    ),
    Sample(
        lambda make: (make(9, 2, 16), make(12, 2, 16), make(12, 2, 16), 2, "TND"),
        {"actual_seq_qlen": [4, 9], "actual_seq_kvlen": [5, 12], "softmax_layout": "TND"},
    ),
    Sample(
        lambda make: (*(make(1, 8, 2, 16, dtype=torch.float16) for _ in range(3)), 2, "BSND"),
        lambda make: {"pse": make(1, 2, 8, 8, dtype=torch.float16), "sink": make(2)},
    ),
    Sample(
        lambda make: (*(make(1, 2, 8, 16) for _ in range(3)), 2, "BNSD"),
        {"keep_prob": 0.8, "seed": 3, "offset": 8},
        "dropout",
    ),
]


def _backward_of(
    query, key, value, dy, head_num, input_layout, *, pse=None, padding_mask=None, atten_mask=None,
    softmax_max=None, softmax_sum=None, softmax_in=None, attention_in=None, scale_value=1.0, keep_prob=1.0,
    pre_tockens=2147483647, next_tockens=2147483647, inner_precise=0, seed=0, offset=0, numels=0, prefix=None,
    actual_seq_qlen=None, actual_seq_kvlen=None, sparse_mode=0, gen_mask_parallel=True, sync=False,
    softmax_layout="", sink=None,
) -> tuple[_fusion.Attention, _fusion.Saved]:  # fmt: skip
    """The forward that a gradient belongs to, and what else the gradient is computed from."""
    a = Attention(
        query, key, value, head_num, input_layout, pse, padding_mask, atten_mask, None, None, scale_value, keep_prob,
        pre_tockens, next_tockens, inner_precise, prefix, actual_seq_qlen, actual_seq_kvlen, sparse_mode,
        gen_mask_parallel, sync, softmax_layout=softmax_layout, sink=sink, seed=seed, offset=offset,
        before="pre_tockens", after="next_tockens",
    )  # fmt: skip
    return a, _fusion.Saved(dy, softmax_max, softmax_sum, softmax_in, attention_in, numels)


@npu_op(
    "npu_fusion_attention_grad(Tensor query, Tensor key, Tensor value, Tensor dy, int head_num, str input_layout, *,"
    " Tensor? pse=None, Tensor? padding_mask=None, Tensor? atten_mask=None, Tensor? softmax_max=None,"
    " Tensor? softmax_sum=None, Tensor? softmax_in=None, Tensor? attention_in=None, float scale_value=1.,"
    " float keep_prob=1., int pre_tockens=2147483647, int next_tockens=2147483647, int inner_precise=0, int seed=0,"
    " int offset=0, int numels=0, int[]? prefix=None, int[]? actual_seq_qlen=None, int[]? actual_seq_kvlen=None,"
    ' int sparse_mode=0, bool gen_mask_parallel=True, bool sync=False, str softmax_layout="", Tensor? sink=None)'
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    ge="FlashAttentionScoreGrad",
    core="MIX_AIC",
)
def npu_fusion_attention_grad(**arguments):
    """Gradients of `npu_fusion_attention` for query, key, value, pse and sink.

    The arguments are those of the forward, `dy` the gradient of attention_out, and softmax_max, softmax_sum,
    softmax_in, attention_in, seed, offset and numels what the forward returned. Without pse (sink) its gradient is
    an empty tensor.
    """
    return _fusion.gradients(*_backward_of(**arguments), _fusion_formula.formula_gradients)


@npu_fusion_attention_grad.check
def _(**arguments):
    _fusion_rules.check_gradient(*_backward_of(**arguments))


@npu_fusion_attention_grad.native
def _(**arguments):
    return _fusion.gradients(*_backward_of(**arguments), _fusion_native.native_gradients)


@npu_fusion_attention_grad.meta
def _(**arguments):
    return _fusion.gradients(*_backward_of(**arguments), _fusion.no_gradients)


@npu_fusion_attention_grad.sharding
def _(**arguments):
    yield from _fusion_sharding.backward(arguments)


npu_fusion_attention_grad.samples = [
    Sample(
        lambda make: (*(make(1, 2, 8, 16) for _ in range(4)), 2, "BNSD"),
        lambda make: {
            "softmax_max": make(1, 2, 8, 8, low=9, high=10),
            "softmax_sum": make(1, 2, 8, 8, low=8, high=9),
            "attention_in": make(1, 2, 8, 16),
            "scale_value": 0.25,
        },
    ),
]
