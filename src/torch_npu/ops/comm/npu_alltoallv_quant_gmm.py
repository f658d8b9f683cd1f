"""npu_alltoallv_quant_gmm: quantized tokens go to the ranks of their experts and through their matrices."""

from __future__ import annotations

import torch

from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.comm import _group, _grouped
from torch_npu.ops.comm import _quant_grouped as quant


@npu_op(
    "npu_alltoallv_quant_gmm(Tensor gmm_x, Tensor gmm_weight, Tensor gmm_x_scale,"
    " Tensor gmm_weight_scale, str hcom, int ep_world_size, int[] send_counts, int[] recv_counts,"
    " int gmm_y_dtype, *, Tensor? send_counts_tensor=None, Tensor? recv_counts_tensor=None,"
    " Tensor? mm_x=None, Tensor? mm_weight=None, Tensor? mm_x_scale=None,"
    " Tensor? mm_weight_scale=None, int? gmm_x_quant_mode=None, int? gmm_weight_quant_mode=None,"
    " int? mm_x_quant_mode=None, int? mm_weight_quant_mode=None, bool permute_out_flag=False,"
    " int[]? group_size=None, int? gmm_x_dtype=None, int? gmm_weight_dtype=None,"
    " int? gmm_x_scale_dtype=None, int? gmm_weight_scale_dtype=None, int? mm_x_dtype=None,"
    " int? mm_weight_dtype=None, int? mm_x_scale_dtype=None, int? mm_weight_scale_dtype=None,"
    " int? mm_y_dtype=None, str? comm_mode=None) -> (Tensor, Tensor, Tensor)",
    ge="AlltoAllvQuantGroupedMatMul",
    product=True,
)
def npu_alltoallv_quant_gmm(**arguments):
    r"""Sends quantized tokens to the ranks of their experts and multiplies; beside it a shared expert.

    $$ p = \mathrm{permute}(\mathrm{alltoallv}(x)), \quad y_e = s_x s_w (p_e W_e), \quad
       y' = s'_x s'_w (x' W') $$

    Args:
        gmm_x: x, (BSK, H1), this rank's tokens, by rank, then expert: bytes of hifloat8 (mode 1);
            8-bit floats, or 4-bit floats two to a byte (mode 6).
        gmm_weight: W, (e, H1, N1), the matrices of this rank's e experts; as `gmm_x`.
        gmm_x_scale: s_x, (1,) float32; mode 6: (BSK, ceil(H1 / 64), 2) float8_e8m0fnu.
        gmm_weight_scale: s_w, (1,) float32; mode 6: (e, ceil(H1 / 64), N1, 2) float8_e8m0fnu.
        hcom: the name of the group.
        ep_world_size: its number of ranks, a power of two from 2 to 256.
        send_counts: e * ep_world_size counts: tokens for each rank's experts, by rank, then expert.
        recv_counts: e * ep_world_size counts: tokens from each rank for each expert of this rank.
        gmm_y_dtype: float16 or bfloat16.
        send_counts_tensor: reserved.
        recv_counts_tensor: reserved.
        mm_x: x' of the shared expert, (BS, H2); as `gmm_x`.
        mm_weight: W', (H2, N2).
        mm_x_scale: s'_x, as `gmm_x_scale`.
        mm_weight_scale: s'_w, (1,), or (ceil(H2 / 64), N2, 2).
        gmm_x_quant_mode: 1 (also for None), one scale a matrix, or 6, microscaling.
        gmm_weight_quant_mode: as `gmm_x_quant_mode`.
        mm_x_quant_mode: as `gmm_x_quant_mode`; for a shared expert.
        mm_weight_quant_mode: as `gmm_x_quant_mode`; for a shared expert.
        permute_out_flag: whether p is returned.
        group_size: None or [0, 0, 0]; mode 6: also [1, 1, 32].
        gmm_x_dtype: hifloat8, or float4_e2m1fn_x2.
        gmm_weight_dtype: as `gmm_x_dtype`.
        gmm_x_scale_dtype: float8_e8m0fnu in mode 6.
        gmm_weight_scale_dtype: as `gmm_x_scale_dtype`.
        mm_x_dtype: as `gmm_x_dtype`.
        mm_weight_dtype: as `gmm_x_dtype`.
        mm_x_scale_dtype: as `gmm_x_scale_dtype`.
        mm_weight_scale_dtype: as `gmm_x_scale_dtype`.
        mm_y_dtype: float16 or bfloat16; for a shared expert.
        comm_mode: None, "ai_cpu" or "ccu"; the result is the same.

    Returns:
        y, (A, N1), with A the sum of recv_counts; y', (BS, N2), or None; p, (A, H1), or None.

    Differs from upstream: upstream has it on Ascend950 only, here every chip computes it.
    """
    group, experts = _group.find(arguments["hcom"]), arguments["gmm_weight"].shape[0]
    sent, received = arguments["send_counts"], arguments["recv_counts"]
    x, scale = arguments["gmm_x"], arguments["gmm_x_scale"]

    def arrived(rows):
        moved = group.all_to_all(
            quant.rows_as_bytes(rows),
            _grouped.by_rank(sent, experts),
            _grouped.by_rank(received, experts),
        )
        return _grouped.to_experts(moved, received, experts).view(rows.dtype)

    permuted = arrived(x)
    if arguments["gmm_x_quant_mode"] == quant.MICRO:
        scale = arrived(scale)
    y = quant.grouped(arguments, permuted, scale, _grouped.by_expert(received, experts))
    return y, quant.shared(arguments), permuted if arguments["permute_out_flag"] else None


@npu_alltoallv_quant_gmm.check
def _(**arguments):
    quant.check(arguments)
    if arguments["mm_x"] is not None:
        _grouped.check_shared(arguments["gmm_x"], arguments["mm_x"])


@npu_alltoallv_quant_gmm.meta
def _(**arguments):
    x, rows = arguments["gmm_x"], sum(arguments["recv_counts"])
    permuted = x.new_empty((rows, x.shape[1])) if arguments["permute_out_flag"] else None
    return quant.empty(arguments, "gmm", rows), quant.empty_shared(arguments), permuted


def _bytes(make, *shape, low=1, high=60):
    return make(*shape, dtype=torch.uint8, low=low, high=high)


def _codes(**suffixes):
    """The same codes for both sides of both products."""
    sides = [f"{k}_{s}" for k in ("gmm", "mm") for s in ("x", "weight")]
    return {f"{side}_{end}": code for side in sides for end, code in suffixes.items()}


npu_alltoallv_quant_gmm.samples = [
    Sample(
        lambda make: (
            _bytes(make, 8, 6),
            _bytes(make, 2, 6, 4),
            make(1, low=0.5),
            make(1, low=0.5),
            "softnpu%mirror_2",
            2,
            [2, 2, 2, 2],
            [2, 2, 2, 2],
            15,
        ),
        lambda make: {
            "mm_x": _bytes(make, 4, 6),
            "mm_weight": _bytes(make, 6, 5),
            "mm_x_scale": make(1, low=0.5),
            "mm_weight_scale": make(1, low=0.5),
            **_codes(quant_mode=1, dtype=290),
            "permute_out_flag": True,
            "mm_y_dtype": 15,
        },
    ),
]
