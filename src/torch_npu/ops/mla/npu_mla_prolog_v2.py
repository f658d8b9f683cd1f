"""npu_mla_prolog_v2: as npu_mla_prolog, and with everything quantized."""

from __future__ import annotations

from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.mla import _paged_rules
from torch_npu.ops.mla._paged import Prolog
from torch_npu.ops.mla._samples import FULL, arguments, scales


@npu_op(
    "npu_mla_prolog_v2(Tensor token_x, Tensor weight_dq, Tensor weight_uq_qr, Tensor weight_uk,"
    " Tensor weight_dkv_kr, Tensor rmsnorm_gamma_cq, Tensor rmsnorm_gamma_ckv, Tensor rope_sin,"
    " Tensor rope_cos, Tensor cache_index, Tensor kv_cache, Tensor kr_cache, *,"
    " Tensor? dequant_scale_x=None, Tensor? dequant_scale_w_dq=None,"
    " Tensor? dequant_scale_w_uq_qr=None, Tensor? dequant_scale_w_dkv_kr=None,"
    " Tensor? quant_scale_ckv=None, Tensor? quant_scale_ckr=None, Tensor? smooth_scales_cq=None,"
    " float rmsnorm_epsilon_cq=1e-05, float rmsnorm_epsilon_ckv=1e-05,"
    ' str cache_mode="PA_BSND") -> (Tensor, Tensor, Tensor, Tensor, Tensor)'
)
def npu_mla_prolog_v2(**arguments):
    r"""Projects tokens to the queries of MLA attention and writes their keys into paged caches.

    The formulas are those of `npu_mla_prolog`; with int8 tokens and an int8 cache the query is
    int8, too:

    $$ \text{scale}^Q = \frac{\max |q^N|}{127}, \qquad
       q^N \leftarrow \mathrm{round}\!\left(\frac{q^N}{\text{scale}^Q}\right), \qquad
       q^R \leftarrow q^R \cdot \frac{\text{quant\_scale\_ckv}}{\text{scale}^Q} $$

    for each token and head, so that the attention's de-quantization is right for both parts.

    Args:
        token_x: x, (T, He) or (B, S, He); bfloat16, or int8 with `dequant_scale_x`.
        weight_dq: W^DQ, (He, 1536); the dtype of `token_x`.
        weight_uq_qr: [W^UQ | W^QR] head by head, (1536, N * (128 + 64)); bfloat16 or int8.
        weight_uk: W^UK, (N, 128, 512); bfloat16.
        weight_dkv_kr: [W^DKV | W^KR], (He, 512 + 64); the dtype of `token_x`.
        rmsnorm_gamma_cq, rmsnorm_gamma_ckv: γ of the two norms, (1536,) and (512,); bfloat16.
        rope_sin, rope_cos: (T, 64) or (B, S, 64); bfloat16.
        cache_index: the slot of each token, (T,) or (B, S) int64; a negative one is not written.
        kv_cache, kr_cache: (blocks, block size, 1, 512) and (.., 64), bfloat16 or int8; updated in
            place. With int8 tokens only `kv_cache` may be int8.
        dequant_scale_x: (tokens, 1) float32, the scales of int8 tokens.
        dequant_scale_w_dq, dequant_scale_w_uq_qr, dequant_scale_w_dkv_kr: float32 channel scales
            of int8 weights, (1, columns).
        quant_scale_ckv, quant_scale_ckr: (1, 512) and (1, 64) float32; what the keys are
            multiplied by before they are rounded to int8 caches. With int8 tokens the first
            element serves for all.
        smooth_scales_cq: (1, 1536) float32, the factor of c^Q before it is quantized; optional.
        rmsnorm_epsilon_cq, rmsnorm_epsilon_ckv: ε of the two norms.
        cache_mode: "PA_BSND", or "PA_NZ" where each block's bytes are ordered (width / c, block
            size, c) with c elements in 32 bytes.

    Returns:
        q^N, (T, N, 512) or (B, S, N, 512), bfloat16 or int8; q^R, (.., N, 64) bfloat16; the two
        caches; and scale^Q, (tokens, N, 1) float32, or one zero where the query is not quantized.

    Constraints:
        Inference on Atlas A2 and A3. He is 1024 to 8192 in steps of 1024, or 7680; N a power of two up to 128; the block
        size a multiple of 16 up to 1024.

    The schema does not say so (nor does upstream's), but `kv_cache` and `kr_cache` are updated in
    place and returned.
    """
    return Prolog(**arguments).run()


@npu_mla_prolog_v2.check
def _(**arguments):
    _paged_rules.check(Prolog(**arguments), full_int8=True)


@npu_mla_prolog_v2.meta
def _(**arguments):
    return Prolog(**arguments).shapes()


npu_mla_prolog_v2.samples = [
    Sample(lambda make: arguments(make, tokens=(2, 1))),
    Sample(
        lambda make: arguments(make, tokens=(2,), down="int8", up="int8", cache="int8"),
        lambda make: scales(make, 2, *FULL, "smooth", "ckv"),
    ),
]
