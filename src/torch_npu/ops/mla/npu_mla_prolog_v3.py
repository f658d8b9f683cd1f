"""npu_mla_prolog_v3 and npu_mla_prolog_v3_functional: the MLA prolog with every cache layout."""

from __future__ import annotations

from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.mla import _v3_rules
from torch_npu.ops.mla._samples import FULL, arguments, scales
from torch_npu.ops.mla._v3 import PrologV3

_INPUTS = (
    "Tensor token_x, Tensor weight_dq, Tensor weight_uq_qr, Tensor weight_uk,"
    " Tensor weight_dkv_kr, Tensor rmsnorm_gamma_cq, Tensor rmsnorm_gamma_ckv, Tensor rope_sin,"
    " Tensor rope_cos"
)
_OPTIONS = (
    "*, Tensor? cache_index=None, Tensor? dequant_scale_x=None, Tensor? dequant_scale_w_dq=None,"
    " Tensor? dequant_scale_w_uq_qr=None, Tensor? dequant_scale_w_dkv_kr=None,"
    " Tensor? quant_scale_ckv=None, Tensor? quant_scale_ckr=None, Tensor? smooth_scales_cq=None,"
    " Tensor? actual_seq_len=None, Tensor? k_nope_clip_alpha=None, float rmsnorm_epsilon_cq=1e-05,"
    ' float rmsnorm_epsilon_ckv=1e-05, str cache_mode="PA_BSND", bool query_norm_flag=False,'
    " int weight_quant_mode=0, int kv_cache_quant_mode=0, int query_quant_mode=0,"
    " int ckvkr_repo_mode=0, int quant_scale_repo_mode=0, int tile_size=128,"
    " float qc_qr_scale=1.0, float kc_scale=1.0, int? token_x_dtype=None,"
    " int? weight_dq_dtype=None, int? weight_uq_qr_dtype=None, int? weight_dkv_kr_dtype=None,"
    " int? kv_cache_dtype=None"
)


def _split(make, **options):
    """The sample arguments without the cache index, and that index."""
    given = arguments(make, **options)
    return (*given[:9], *given[10:]), given[9]


def _quantized(make):
    found = scales(make, 2, *FULL, "smooth", "ckv") | {"cache_index": _split(make, tokens=(2,))[1]}
    found["quant_scale_ckv"] = found["quant_scale_ckv"][0, :1].clone()
    modes = {"weight_quant_mode": 2, "kv_cache_quant_mode": 1, "query_quant_mode": 1}
    return found | modes | {"query_norm_flag": True}


_SAMPLES = [
    Sample(
        lambda make: _split(make, tokens=(2, 1))[0],
        lambda make: {"cache_index": _split(make, tokens=(2, 1))[1]},
    ),
    Sample(
        lambda make: _split(make, tokens=(2,), down="int8", up="int8", cache="int8")[0], _quantized
    ),
]


@npu_op(
    f"npu_mla_prolog_v3({_INPUTS}, Tensor(a!) kv_cache, Tensor(b!) kr_cache, {_OPTIONS})"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    functional=f"npu_mla_prolog_v3_functional({_INPUTS}, Tensor kv_cache, Tensor kr_cache, {_OPTIONS})"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def npu_mla_prolog_v3(**arguments):
    r"""Projects tokens to the queries of MLA attention and writes their keys into caches, in place.

    $$ c^Q = \alpha_q \mathrm{RmsNorm}(x W^{DQ}), \quad q^C = c^Q W^{UQ}, \quad q^N = q^C W^{UK}, \quad
       q^R = \mathrm{ROPE}(c^Q W^{QR}) $$
    $$ k^C = \mathrm{Cache}(\alpha_{kv} \mathrm{RmsNorm}(x W^{DKV})), \quad
       k^R = \mathrm{Cache}(\mathrm{ROPE}(x W^{KR})) $$

    ROPE takes interleaved pairs: with e the even and o the odd elements of x, it is
    $[e, o] \cdot \cos + [-o, e] \cdot \sin$. If the query is quantized, for each token and head:

    $$ \text{scale}^Q = \frac{\max |q^N|}{M}, \qquad q^N \leftarrow \frac{q^N}{\text{scale}^Q}, \qquad
       q^R \leftarrow q^R \cdot \frac{\text{quant\_scale\_ckv}}{\text{scale}^Q} $$

    rounded to the format, M being its largest value (127 for int8, 448 for float8_e4m3fn).

    Args:
        token_x: x, (T, He) or (B, S, He).
        weight_dq, weight_uq_qr, weight_uk, weight_dkv_kr: W^DQ (He, Hcq), [W^UQ | W^QR] head by
            head (Hcq, N * (D + 64)), W^UK (N, D, 512) and [W^DKV | W^KR] (He, 512 + 64).
        rmsnorm_gamma_cq, rmsnorm_gamma_ckv: γ of the two norms, (Hcq,) and (512,); bfloat16.
        rope_sin, rope_cos: (T, 64) or (B, S, 64); bfloat16.
        kv_cache, kr_cache: paged (blocks, block size, 1, 512 and 64), or (B, S, 1, ..), or (T, 1,
            ..).
        cache_index: the slot of each token ("PA_BSND", "PA_NZ"), or the block of each run of
            block-size tokens of a sequence ("PA_BLK_BSND", "PA_BLK_NZ"); int64, negative: not
            written.
        dequant_scale_x, dequant_scale_w_dq, dequant_scale_w_uq_qr, dequant_scale_w_dkv_kr: float32
            scales for each token, (tokens, 1), and channel, (1, columns); with weight_quant_mode 3
            float8_e8m0fnu ones for each group of 32, (tokens, He / 32) and (columns, rows / 32).
        quant_scale_ckv, quant_scale_ckr: what the keys are multiplied by before they are rounded
            to the cache's format; (1,) for all, or (1, 512) and (1, 64) for each channel.
        smooth_scales_cq: (1, Hcq) float32, the factor of c^Q before it is quantized; optional.
        actual_seq_len: int32 running sum of the sequences' lengths, for "PA_BLK" caches and (T,
            He) tokens.
        k_nope_clip_alpha: (1,) float32; int8 tiles are clipped at this part of their maximum; needed with them.
        rmsnorm_epsilon_cq, rmsnorm_epsilon_ckv: ε of the two norms.
        cache_mode: "PA_BSND", "PA_NZ", "PA_BLK_BSND", "PA_BLK_NZ", "BSND" or "TND"; the bytes of
            an NZ block are ordered (width / c, block size, c) with c elements in 32 bytes.
        query_norm_flag: whether to return c^Q and its scales.
        weight_quant_mode: 0 none, 1 `weight_uq_qr` int8, 2 all int8, 3 all MXFP8, 4 all
            float8_e4m3fn, 5 all hifloat8 (in uint8 tensors); 3 to 5 on Ascend 950 only.
        kv_cache_quant_mode: 0 none, 1 one scale, 2 a scale for each channel, 3 a dynamic one for
            each tile.
        query_quant_mode: 1 with kv_cache_quant_mode 1, else 0.
        ckvkr_repo_mode, quant_scale_repo_mode: 1 with kv_cache_quant_mode 3, else 0. A row of
            `kv_cache` is then 656 bytes: 512 quantized values, 64 bfloat16 of k^R, 4 float32
            scales; `kr_cache` is empty.
        tile_size: 128.
        qc_qr_scale, kc_scale: α_q and α_kv.
        token_x_dtype, weight_dq_dtype, weight_uq_qr_dtype, weight_dkv_kr_dtype, kv_cache_dtype:
            `torch_npu.hifloat8` for what is hifloat8, else not read.

    Returns:
        q^N, (.., N, 512); q^R, (.., N, 64) bfloat16; scale^Q, (tokens, N, 1) float32; c^Q, (..,
        Hcq), as the next product takes it; its scales, (tokens, 1) float32, or (tokens, Hcq / 32)
        with weight_quant_mode 3. What is not asked for is empty.

    Constraints:
        Inference. He is 1024 to 8192 as documented, Hcq 1536 or 2048, D 128 or 192, N a power of
        two up to 128, the block size a multiple of 16 up to 1024.

    Differs from upstream: absent results are empty tensors, as in graph mode (upstream's eager
    mode returns undefined ones).
    """
    return PrologV3(**arguments).run()


@npu_mla_prolog_v3.check
def _(**arguments):
    _v3_rules.check(PrologV3(**arguments))


npu_mla_prolog_v3.samples = _SAMPLES
