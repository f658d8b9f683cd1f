"""npu_multi_head_latent_attention: decode attention over latent and rope caches, with or without the logsumexp."""

from __future__ import annotations

import torch

from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _atb_rules as rules
from torch_npu.ops.atb import _latent_rules
from torch_npu.ops.atb._attend import in_blocks, natively
from torch_npu.ops.atb._latent import LatentArguments

_FIRST = (
    "Tensor q_nope, Tensor q_rope, Tensor ctkv, Tensor k_rope, Tensor block_tables, "
    "SymInt[] context_lens, int q_headnum, float qk_scale, int kv_headnum"
)
_OPTIONS = (
    "*, Tensor? mask=None, SymInt[]? qseqlen=None, Tensor? qk_descale=None, Tensor? pv_descale=None, "
    "str? mask_type=None, str? calc_type=None, str? cache_mode=None"
)


@npu_op(
    f"atb::npu_multi_head_latent_attention({_FIRST}, {_OPTIONS}) -> Tensor",
    out=f"npu_multi_head_latent_attention.out({_FIRST}, {_OPTIONS}, Tensor(a!) output) -> Tensor(a!)",
    ge="MultiLatentAttention",
    core="MIX_AIC",
    product=True,
)
def npu_multi_head_latent_attention(**arguments):
    r"""Attention of new tokens over pages of latent vectors and rope parts.

    $$ out = \mathrm{softmax}(scale \cdot (q_{nope} C^T + q_{rope} R^T)) C $$

    where C (`ctkv`) and R (`k_rope`) are the first `context_lens[b]` tokens of the pages of sequence b.

    | cache_mode | ctkv | k_rope |
    |---|---|---|
    | krope_ctkv (the default) | (blocks, 128, 1, 512) | (blocks, 128, 1, 64) |
    | nzcache | (blocks, 32, 128, 16) | (blocks, 4, 128, 16) |
    | int8_nzcache | int8, (blocks, 16, 128, 32) | (blocks, 4, 128, 16) |

    In int8 the products of latents are scaled by `qk_descale` of the head, the weights are rounded to steps of 1/127
    of a row's largest, and the result is scaled by `pv_descale`.

    Args:
        q_nope: (tokens, q_headnum, 512), float16 or bfloat16; int8 in 'int8_nzcache'.
        q_rope: (tokens, q_headnum, 64), float16 or bfloat16.
        ctkv: the latent cache.
        k_rope: the rope cache, the dtype of `q_rope`.
        block_tables: (batch, pages), int32.
        context_lens: the keys of each sequence.
        q_headnum: query heads: 8, 16, 32, 64 or 128.
        qk_scale: factor of the scores, above 0 and at most 1.
        kv_headnum: 1.
        mask: with 'mask_type_spec', (tokens, S), added to the scores.
        qseqlen: the new tokens of each sequence in 'calc_type_spec'; one each otherwise.
        qk_descale: (q_headnum,), float32, in 'int8_nzcache'.
        pv_descale: (q_headnum,), float32, in 'int8_nzcache'.
        mask_type: 'undefined' (the default), 'mask_type_spec', or 'mask_type_free' (causal without a mask).
        calc_type: 'calc_type_undefined' (the default), 'calc_type_spec' (several new tokens), or 'calc_type_ring'
            (with the logsumexp).
        cache_mode: 'krope_ctkv', 'int8_nzcache' or 'nzcache'.

    Returns:
        (tokens, q_headnum, 512), the dtype of `q_rope`.
    """
    return LatentArguments(**arguments).run(in_blocks)[0]


@npu_multi_head_latent_attention.native
def _(**arguments):
    return LatentArguments(**arguments).run(natively)[0]


@npu_multi_head_latent_attention.check
def _(**arguments):
    _latent_rules.check(LatentArguments(**arguments))


@npu_multi_head_latent_attention.meta
def _(**arguments):
    return LatentArguments(**arguments).outputs()[0]


@npu_op(
    f"atb::npu_multi_head_latent_attention.lse({_FIRST}, bool return_lse, {_OPTIONS}, "
    "Tensor? workspace=None) -> (Tensor, Tensor)",
    out=f"npu_multi_head_latent_attention.lse_out({_FIRST}, bool return_lse, {_OPTIONS}, "
    "Tensor? workspace=None, Tensor(a!) output, Tensor(b!) lse) -> (Tensor(a!), Tensor(b!))",
    ge="MultiLatentAttention",
    core="MIX_AIC",
    product=True,
)
def npu_multi_head_latent_attention_lse(return_lse, workspace, **arguments):
    """`npu_multi_head_latent_attention` with the logsumexp of the scores.

    Args:
        return_lse: whether the logsumexp is returned.
        workspace: scratch memory for graphs; not needed here.

    Returns:
        The attention, and the logsumexp (tokens, q_headnum, 1) in the dtype of `q_rope`; empty without `return_lse`
        or with another `calc_type` than 'calc_type_ring'.
    """
    return _with_lse(in_blocks, return_lse, arguments)


def _with_lse(engine, return_lse, arguments):
    out, lse = LatentArguments(**arguments).run(engine)
    return out, lse if return_lse else lse.new_empty(0)


@npu_multi_head_latent_attention_lse.native
def _(return_lse, workspace, **arguments):
    return _with_lse(natively, return_lse, arguments)


@npu_multi_head_latent_attention_lse.check
def _(return_lse, workspace, **arguments):
    _latent_rules.check(LatentArguments(**arguments))


@npu_multi_head_latent_attention_lse.meta
def _(return_lse, workspace, **arguments):
    out, lse = LatentArguments(**arguments).outputs()
    return out, lse if return_lse else lse.new_empty(0)


@npu_op(
    f"atb::_npu_multi_head_latent_attention_get_workspace.lse({_FIRST}, bool return_lse, {_OPTIONS}) "
    "-> Tensor",
)
def _npu_multi_head_latent_attention_get_workspace(return_lse, **arguments):
    """Scratch memory for `npu_multi_head_latent_attention` in a graph: 1-D, uint8."""
    return rules.workspace(arguments["q_rope"])


@_npu_multi_head_latent_attention_get_workspace.check
def _(return_lse, **arguments):
    _latent_rules.check(LatentArguments(**arguments))


def _inputs(make):
    return (
        make(2, 8, 512, dtype=torch.bfloat16),
        make(2, 8, 64, dtype=torch.bfloat16),
        make(4, 128, 1, 512, dtype=torch.bfloat16),
        make(4, 128, 1, 64, dtype=torch.bfloat16),
        make(2, 2, dtype=torch.int32, low=0, high=4),
        [140, 7],
        8,
        0.05,
        1,
    )


def _int8(make):
    return (
        make(2, 8, 512, dtype=torch.int8, low=-9, high=9),
        make(2, 8, 64, dtype=torch.float16),
        make(4, 16, 128, 32, dtype=torch.int8, low=-9, high=9),
        make(4, 4, 128, 16, dtype=torch.float16),
        *_inputs(make)[4:],
    )


npu_multi_head_latent_attention.samples = [
    Sample(_inputs),
    Sample(
        _int8,
        lambda make: {
            "qk_descale": make(8, low=0.001, high=0.01),
            "pv_descale": make(8, low=0.01, high=0.1),
            "cache_mode": "int8_nzcache",
        },
    ),
]
npu_multi_head_latent_attention_lse.samples = [
    Sample(lambda make: (*_inputs(make), True), {"calc_type": "calc_type_ring"}),
    Sample(lambda make: (*_inputs(make), False)),
]
_npu_multi_head_latent_attention_get_workspace.samples = [
    Sample(lambda make: (*_inputs(make), True), {"calc_type": "calc_type_ring"})
]
