"""Multi-head latent attention of `_C_ascend`: the queries and cache entries of decoding tokens in one operator."""

from __future__ import annotations

from softnpu.contrib.kernels.mla import (
    DYNAMIC,
    FUSED,
    INT8_NZ,
    NZ,
    PLAIN,
    STATIC,
    check_preprocess,
    preprocess,
)
from softnpu.contrib.vllm_ascend._define import ascend_op
from torch_npu.ops import _check as must

__all__ = ["mla_preprocess"]

CACHE_MODES = (FUSED, "krope_ctkv", INT8_NZ, NZ)


@ascend_op(
    "mla_preprocess(Tensor hiddenState, Tensor wdqkv, Tensor? descale0, Tensor gamma1, "
    "Tensor? beta1, Tensor wuq, Tensor? descale1, Tensor gamma2, Tensor? cos, Tensor? sin, "
    "Tensor wuk, Tensor kv_cache, Tensor kv_cache_rope, Tensor slotmapping, "
    "Tensor? quant_scale0, Tensor? quant_offset0, Tensor? bias0, Tensor? quant_scale1, "
    "Tensor? quant_offset1, Tensor? bias1, Tensor? ctkv_scale, Tensor? q_nope_scale, "
    "str? cache_mode, str? quant_mode, bool? enable_inner_out, Tensor(a!) q_out0, "
    "Tensor(b!) kv_cache_out0, Tensor(c!) q_out1, Tensor(d!) kv_cache_out1, Tensor(e!) inner_out) -> "
    "(Tensor q_out0, Tensor kv_cache_out0, Tensor q_out1, Tensor kv_cache_out1, Tensor inner_out)",
    product=True,
)
def mla_preprocess(hiddenState, enable_inner_out, inner_out, **rest):
    r"""[c, r, d] = x W_dqkv, [q_n, q_r] = norm(d) W_uq for each head; writes norm(c), rope(r), q_n W_uk, rope(q_r).

    Unlike `npu_mla_preprocess` of ATB, x comes normalized, all sizes follow from the tensors, there is a fused cache
    and a form without quantization, and `inner_out` receives norm(d). Without cos and sin nothing is rotated.
    """
    must.anything(
        rest.pop("kv_cache"), rest.pop("kv_cache_rope")
    )  # the outputs are what is written
    inner = inner_out if enable_inner_out else None
    preprocess(hiddenState, hiddenState.dtype, **rest, inner_out=inner)
    outputs = (rest[n] for n in ("q_out0", "kv_cache_out0", "q_out1", "kv_cache_out1"))
    return *outputs, inner_out


@mla_preprocess.meta
def _(q_out0, kv_cache_out0, q_out1, kv_cache_out1, inner_out):
    return q_out0, kv_cache_out0, q_out1, kv_cache_out1, inner_out


@mla_preprocess.check
def _(cache_mode, quant_mode, **rest):
    must.choice("cache_mode", cache_mode, (*CACHE_MODES, None))
    must.choice("quant_mode", quant_mode, (STATIC, DYNAMIC, PLAIN, None))
    check_preprocess(cache_mode=cache_mode, quant_mode=quant_mode, **rest)
