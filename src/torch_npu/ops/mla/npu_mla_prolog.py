"""npu_mla_prolog: queries and cached keys of multi-head latent attention."""

from __future__ import annotations

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.mla import _paged_rules
from torch_npu.ops.mla._paged import Prolog
from torch_npu.ops.mla._samples import arguments, scales


@npu_op(
    "npu_mla_prolog(Tensor token_x, Tensor weight_dq, Tensor weight_uq_qr, Tensor weight_uk,"
    " Tensor weight_dkv_kr, Tensor rmsnorm_gamma_cq, Tensor rmsnorm_gamma_ckv, Tensor rope_sin,"
    " Tensor rope_cos, Tensor cache_index, Tensor kv_cache, Tensor kr_cache, *,"
    " Tensor? dequant_scale_x=None, Tensor? dequant_scale_w_dq=None,"
    " Tensor? dequant_scale_w_uq_qr=None, Tensor? dequant_scale_w_dkv_kr=None,"
    " Tensor? quant_scale_ckv=None, Tensor? quant_scale_ckr=None, Tensor? smooth_scales_cq=None,"
    " float rmsnorm_epsilon_cq=1e-05, float rmsnorm_epsilon_ckv=1e-05,"
    ' str cache_mode="PA_BSND") -> (Tensor, Tensor, Tensor, Tensor)'
)
def npu_mla_prolog(**arguments):
    r"""Projects tokens to the queries of MLA attention and writes their keys into paged caches.

    $$ c^Q = \mathrm{RmsNorm}(x W^{DQ}), \quad q^C = c^Q W^{UQ}, \quad q^N = q^C W^{UK}, \quad
       q^R = \mathrm{ROPE}(c^Q W^{QR}) $$
    $$ k^C = \mathrm{Cache}(\mathrm{RmsNorm}(x W^{DKV})), \quad
       k^R = \mathrm{Cache}(\mathrm{ROPE}(x W^{KR})) $$

    ROPE takes interleaved pairs: with e the even and o the odd elements of x, it is
    $[e, o] \cdot \cos + [-o, e] \cdot \sin$.

    Args:
        token_x: x, (T, He) or (B, S, He); bfloat16.
        weight_dq: W^DQ, (He, 1536); bfloat16.
        weight_uq_qr: [W^UQ | W^QR] head by head, (1536, N * (128 + 64)); bfloat16 or int8.
        weight_uk: W^UK, (N, 128, 512); bfloat16.
        weight_dkv_kr: [W^DKV | W^KR], (He, 512 + 64); bfloat16.
        rmsnorm_gamma_cq, rmsnorm_gamma_ckv: γ of the two norms, (1536,) and (512,); bfloat16.
        rope_sin, rope_cos: (T, 64) or (B, S, 64); bfloat16.
        cache_index: the slot of each token, (T,) or (B, S) int64; a negative one is not written.
        kv_cache, kr_cache: (blocks, block size, 1, 512) and (.., 64), bfloat16 or int8; updated in
            place.
        dequant_scale_x, dequant_scale_w_dq, dequant_scale_w_dkv_kr: reserved, must stay None.
        dequant_scale_w_uq_qr: (1, N * 192) float32, the channel scales of an int8 `weight_uq_qr`.
        quant_scale_ckv, quant_scale_ckr: (1, 512) and (1, 64) float32; what the keys are
            multiplied by before they are rounded to int8 caches.
        smooth_scales_cq: (1, 1536) float32, the factor of c^Q before it is quantized; optional.
        rmsnorm_epsilon_cq, rmsnorm_epsilon_ckv: ε of the two norms.
        cache_mode: "PA_BSND", or "PA_NZ" where each block's bytes are ordered (width / c, block
            size, c) with c elements in 32 bytes.

    Returns:
        q^N, (T, N, 512) or (B, S, N, 512); q^R, (.., N, 64); both bfloat16; and the two caches.

    Constraints:
        Inference on Atlas A2 and A3. He is 1024 to 8192 in steps of 1024, or 7680; N a power of two up to 128; the block
        size a multiple of 16 up to 1024. An int8 cache needs an int8 `weight_uq_qr`.

    The schema does not say so (nor does upstream's), but `kv_cache` and `kr_cache` are updated in
    place and returned.
    """
    return Prolog(**arguments).run()[:4]


@npu_mla_prolog.check
def _(**arguments):
    given = Prolog(**arguments)
    must.unset("dequant_scale_x", given.dequant_scale_x)
    must.unset("dequant_scale_w_dq", given.dequant_scale_w_dq)
    must.unset("dequant_scale_w_dkv_kr", given.dequant_scale_w_dkv_kr)
    _paged_rules.check(given, full_int8=False)


@npu_mla_prolog.meta
def _(**arguments):
    return Prolog(**arguments).shapes()[:4]


npu_mla_prolog.samples = [
    Sample(lambda make: arguments(make, tokens=(2, 1))),
    Sample(
        lambda make: arguments(make, tokens=(3,), up="int8", cache="int8"),
        lambda make: scales(make, 3, "uq_qr", "smooth", "ckv", "ckr") | {"cache_mode": "PA_NZ"},
    ),
]
