"""npu_fusion_attention_v3 and npu_fusion_attention_grad_v3: attention for training that graphs can hold."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensor

from softnpu import chips
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.attention import (
    _fusion,
    _fusion_formula,
    _fusion_native,
    _fusion_rules,
    _fusion_sharding,
)
from torch_npu.ops.attention._fusion import Attention

ARGUMENTS = (
    "(Tensor query, Tensor key, Tensor value, int head_num, str input_layout, Tensor? pse=None,"
    " Tensor? padding_mask=None, Tensor? atten_mask=None, float scale=1., float keep_prob=1.,"
    " int pre_tockens=2147483647, int next_tockens=2147483647, int inner_precise=0, {ints}[]? prefix=None,"
    " Tensor? actual_seq_qlen=None, Tensor? actual_seq_kvlen=None, int sparse_mode=0,"
    ' bool gen_mask_parallel=True, bool sync=False, str softmax_layout="", Tensor? sink=None'
)

GRADIENT_ARGUMENTS = (
    "(Tensor query, Tensor key, Tensor value, Tensor dy, int head_num, str input_layout, *, Tensor? pse=None,"
    " Tensor? padding_mask=None, Tensor? atten_mask=None, Tensor? softmax_max=None, Tensor? softmax_sum=None,"
    " Tensor? softmax_in=None, Tensor? attention_in=None, float scale_value=1., float keep_prob=1.,"
    " int pre_tockens=2147483647, int next_tockens=2147483647, int inner_precise=0, Tensor? seed=None,"
    " Tensor? offset=None, {ints}[]? prefix=None, Tensor? actual_seq_qlen=None, Tensor? actual_seq_kvlen=None,"
    ' int sparse_mode=0, bool gen_mask_parallel=True, bool sync=False, str softmax_layout="", Tensor? sink=None'
)

#: lengths in tensors: what a page says of their values holds for lists
_LENGTHS = ("actual_seq_qlen", "actual_seq_kvlen")


def _readable(tensor: torch.Tensor | None) -> bool:
    """Whether the values are there: on the host, and inside a kernel, they are in a captured graph too."""
    host = tensor is not None and tensor.device.type == "cpu" and not isinstance(tensor, FakeTensor)
    return host or must.has_data(tensor)


def _ends(tensor: torch.Tensor | None, whole: torch.Tensor) -> list[int] | None:
    """The numbers in a tensor of lengths; for one without data, one sequence of everything."""
    if tensor is None:
        return None
    if not _readable(tensor):
        return [whole.shape[0]] * tensor.shape[0]
    return tensor.tolist()


def attention(
    query, key, value, head_num, input_layout, pse=None, padding_mask=None, atten_mask=None, scale=1.0,
    keep_prob=1.0, pre_tockens=2147483647, next_tockens=2147483647, inner_precise=0, prefix=None,
    actual_seq_qlen=None, actual_seq_kvlen=None, sparse_mode=0, gen_mask_parallel=True, sync=False,
    softmax_layout="", sink=None, seed=0, offset=0,
):  # fmt: skip
    """The forward's arguments, as upstream orders them."""
    return Attention(
        query, key, value, head_num, input_layout, pse, padding_mask, atten_mask, None, None, scale, keep_prob,
        pre_tockens, next_tockens, inner_precise, prefix, _ends(actual_seq_qlen, query),
        _ends(actual_seq_kvlen, key), sparse_mode, gen_mask_parallel, sync, softmax_layout=softmax_layout,
        sink=sink, seed=seed, offset=offset, before="pre_tockens", after="next_tockens",
    )  # fmt: skip


def _six_outputs(a, compute):
    a.draw(at_replay=True)  # seed and offset leave as tensors, which the backward reads
    numbers = [
        torch.full((1,), n, dtype=torch.int64, device=a.query.device) for n in (a.seed, a.offset)
    ]
    return (*compute(a), a.query.new_empty(0), *numbers)


@npu_op(
    "npu_fusion_attention_v3"
    + ARGUMENTS.format(ints="SymInt")
    + ") -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    host_ok=True,
    output_differentiability=(True, True, True, True, False, False),
    ge="FlashAttentionScore",
    core="MIX_AIC",
)
def npu_fusion_attention_v3(**arguments):
    r"""`npu_fusion_attention` whose lengths, seed and offset are tensors, so that graphs can hold it.

    $$ O = \mathrm{dropout}(\mathrm{softmax}(\mathrm{mask}(scale \cdot (pse + Q K^T))), keep\_prob)\, V $$

    Args (those of `npu_fusion_attention` but dropout_mask, seed and offset):
        actual_seq_qlen, actual_seq_kvlen: in TND where each sequence ends; int64 of one dimension.

    Returns:
        attention_out, softmax_max, softmax_sum, an empty tensor, and the seed and the offset, int64 of one element.

    Differs from upstream: as `npu_fusion_attention`; seed and offset are on the device outside graphs too.
    """
    return _six_outputs(attention(**arguments), _fusion_formula.formula)


@npu_fusion_attention_v3.check
def _(**arguments):
    family = chips.current().family
    must.hold(family in ("A2", "A3"), "query", "on a chip of series A2 or A3", family)
    _fusion_rules.check(attention(**arguments))


@npu_fusion_attention_v3.native
def _(**arguments):
    return _six_outputs(attention(**arguments), _fusion_native.native)


@npu_fusion_attention_v3.meta
def _(**arguments):
    return _six_outputs(attention(**arguments), Attention.outputs)


@npu_fusion_attention_v3.backward
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
    out, peak, total, softmax_in, seed, offset = results
    dq, dk, dv, dpse, dsink = torch.ops.npu.npu_fusion_attention_grad_v3(
        query, key, value, dy, head_num, input_layout, pse=pse, padding_mask=padding_mask,
        atten_mask=atten_mask, softmax_max=peak, softmax_sum=total, softmax_in=softmax_in, attention_in=out,
        scale_value=scale, keep_prob=keep_prob, pre_tockens=pre_tockens, next_tockens=next_tockens,
        inner_precise=inner_precise, seed=seed, offset=offset, prefix=prefix,
        actual_seq_qlen=actual_seq_qlen, actual_seq_kvlen=actual_seq_kvlen, sparse_mode=sparse_mode,
        gen_mask_parallel=gen_mask_parallel, sync=sync, softmax_layout=softmax_layout, sink=sink,
    )  # fmt: skip
    return {"query": dq, "key": dk, "value": dv, "pse": dpse, "sink": dsink}


@npu_fusion_attention_v3.sharding
def _(**arguments):
    yield from _fusion_sharding.forward(6, arguments)


npu_fusion_attention_v3.samples = [
    Sample(
        lambda make: (make(2, 16, 64), make(2, 24, 64), make(2, 24, 64), 4, "BSH"),
        {"scale": 0.25},
    ),
    Sample(
        lambda make: (*(make(1, 2, 8, 16) for _ in range(3)), 2, "BNSD"),
        lambda make: {"sink": make(2), "pse": make(1, 2, 8, 8)},
    ),
]


def backward_of(
    query, key, value, dy, head_num, input_layout, *, softmax_max=None, softmax_sum=None, softmax_in=None,
    attention_in=None, scale_value=1.0, seed=None, offset=None, keep_prob=1.0, **options,
) -> tuple[_fusion.Attention, _fusion.Saved]:  # fmt: skip
    """The forward that a gradient belongs to, and what else the gradient is computed from."""
    drawn = [int(n) if keep_prob < 1 and _readable(n) else 0 for n in (seed, offset)]
    a = attention(
        query, key, value, head_num, input_layout, scale=scale_value, keep_prob=keep_prob, seed=drawn[0],
        offset=drawn[1], **options,
    )  # fmt: skip
    return a, _fusion.Saved(dy, softmax_max, softmax_sum, softmax_in, attention_in)


@npu_op(
    "npu_fusion_attention_grad_v3"
    + GRADIENT_ARGUMENTS.format(ints="SymInt")
    + ") -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    host_ok=True,
    ge="FlashAttentionScoreGrad",
    core="MIX_AIC",
)
def npu_fusion_attention_grad_v3(**arguments):
    """Gradients of `npu_fusion_attention_v3` for query, key, value, pse and sink.

    The arguments are those of the forward, `dy` the gradient of attention_out, and softmax_max, softmax_sum,
    softmax_in, attention_in, seed and offset what the forward returned. The gradient of an argument that was not given
    is an empty tensor.
    """
    return _fusion.gradients(*backward_of(**arguments), _fusion_formula.formula_gradients)


@npu_fusion_attention_grad_v3.check
def check_gradient(**arguments):
    for name in ("seed", "offset"):  # their values are for the kernel alone
        tensor = arguments.pop(name)
        if arguments["keep_prob"] < 1:
            must.present(name, tensor, "with keep_prob below 1")
    _fusion_rules.check_gradient(*backward_of(**arguments))


@npu_fusion_attention_grad_v3.native
def _(**arguments):
    return _fusion.gradients(*backward_of(**arguments), _fusion_native.native_gradients)


@npu_fusion_attention_grad_v3.meta
def _(**arguments):
    return _fusion.gradients(*backward_of(**arguments), _fusion.no_gradients)


@npu_fusion_attention_grad_v3.sharding
def _(**arguments):
    yield from _fusion_sharding.backward(arguments)


npu_fusion_attention_grad_v3.samples = [
    Sample(
        lambda make: (*(make(1, 2, 8, 16) for _ in range(4)), 2, "BNSD"),
        lambda make: {
            "softmax_max": make(1, 2, 8, 8, low=9, high=10),
            "softmax_sum": make(1, 2, 8, 8, low=8, high=9),
            "attention_in": make(1, 2, 8, 16),
        },
    ),
]
