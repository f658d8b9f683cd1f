"""npu_quant_gmm_alltoallv: quantized tokens through the matrices of their experts and back to their ranks."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.comm import _group, _grouped
from torch_npu.ops.comm import _quant_grouped as quant


@npu_op(
    "npu_quant_gmm_alltoallv(Tensor gmm_x, Tensor gmm_weight, Tensor gmm_x_scale,"
    " Tensor gmm_weight_scale, str hcom, int ep_world_size, int[] send_counts, int[] recv_counts,"
    " int gmm_y_dtype, *, Tensor? send_counts_tensor=None, Tensor? recv_counts_tensor=None,"
    " Tensor? mm_x=None, Tensor? mm_weight=None, Tensor? mm_x_scale=None,"
    " Tensor? mm_weight_scale=None, Tensor? comm_quant_scale=None, int? gmm_x_quant_mode=None,"
    " int? gmm_weight_quant_mode=None, int? mm_x_quant_mode=None, int? mm_weight_quant_mode=None,"
    " int? comm_quant_mode=None, int[]? group_size=None, int? gmm_x_dtype=None,"
    " int? gmm_weight_dtype=None, int? gmm_x_scale_dtype=None, int? gmm_weight_scale_dtype=None,"
    " int? mm_x_dtype=None, int? mm_weight_dtype=None, int? mm_x_scale_dtype=None,"
    " int? mm_weight_scale_dtype=None, int? comm_quant_dtype=None, int? mm_y_dtype=None,"
    " str? comm_mode=None) -> (Tensor, Tensor)",
    ge="QuantGroupedMatMulAlltoAllv",
    product=True,
)
def npu_quant_gmm_alltoallv(**arguments):
    r"""Multiplies the quantized tokens of each expert and sends them back to their ranks; beside it a shared expert.

    $$ y = \mathrm{alltoallv}(\mathrm{unpermute}(s_x s_w (x_e W_e))), \quad y' = s'_x s'_w (x' W') $$

    Args:
        gmm_x: x, (A, H1), ordered by expert, then rank; types and modes as in
            `npu_alltoallv_quant_gmm`.
        gmm_weight: W, (e, H1, N1).
        gmm_x_scale: as there.
        gmm_weight_scale: as there.
        hcom: the name of the group.
        ep_world_size: its number of ranks, a power of two from 2 to 256.
        send_counts: e * ep_world_size counts: tokens of each expert for each rank, by rank, then
            expert.
        recv_counts: e * ep_world_size counts: tokens that come back, by rank, then expert.
        gmm_y_dtype: float16 or bfloat16.
        send_counts_tensor: reserved.
        recv_counts_tensor: reserved.
        mm_x: as there.
        mm_weight: as there.
        mm_x_scale: as there.
        mm_weight_scale: as there.
        comm_quant_scale: reserved.
        gmm_x_quant_mode: 1 (also for None), one scale a matrix, or 6, microscaling.
        gmm_weight_quant_mode: as `gmm_x_quant_mode`.
        mm_x_quant_mode: as there.
        mm_weight_quant_mode: as there.
        comm_quant_mode: None or 0.
        group_size: as there.
        gmm_x_dtype: as there.
        gmm_weight_dtype: as there.
        gmm_x_scale_dtype: as there.
        gmm_weight_scale_dtype: as there.
        mm_x_dtype: as there.
        mm_weight_dtype: as there.
        mm_x_scale_dtype: as there.
        mm_weight_scale_dtype: as there.
        comm_quant_dtype: reserved.
        mm_y_dtype: as there.
        comm_mode: None, "ai_cpu" or "ccu"; the result is the same.

    Returns:
        y, (BSK, N1), with BSK the sum of recv_counts, and y', (BS, N2), or None.

    Differs from upstream: upstream has it on Ascend950 only, here every chip computes it.
    """
    experts = arguments["gmm_weight"].shape[0]
    sent, received = arguments["send_counts"], arguments["recv_counts"]
    counts = _grouped.by_expert(sent, experts)
    done = quant.grouped(arguments, arguments["gmm_x"], arguments["gmm_x_scale"], counts)
    y = _group.find(arguments["hcom"]).all_to_all(
        _grouped.to_ranks(done, sent, experts),
        _grouped.by_rank(sent, experts),
        _grouped.by_rank(received, experts),
    )
    return y, quant.shared(arguments)


@npu_quant_gmm_alltoallv.check
def _(**arguments):
    must.unset("comm_quant_scale", arguments["comm_quant_scale"])
    words = "comm_quant_mode only support 0"
    must.choice("comm_quant_mode", arguments["comm_quant_mode"], (None, 0), words)
    must.unset("comm_quant_dtype", arguments["comm_quant_dtype"])
    quant.check(arguments)


@npu_quant_gmm_alltoallv.meta
def _(**arguments):
    rows = sum(arguments["recv_counts"])
    return quant.empty(arguments, "gmm", rows), quant.empty_shared(arguments)


def _bytes(make, *shape, low=1, high=60):
    return make(*shape, dtype=torch.uint8, low=low, high=high)


def _codes(**suffixes):
    """The same codes for both sides of both products."""
    sides = [f"{k}_{s}" for k in ("gmm", "mm") for s in ("x", "weight")]
    return {f"{side}_{end}": code for side in sides for end, code in suffixes.items()}


npu_quant_gmm_alltoallv.samples = [
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
            "mm_x": _bytes(make, 3, 6),
            "mm_weight": _bytes(make, 6, 5),
            "mm_x_scale": make(1, low=0.5),
            "mm_weight_scale": make(1, low=0.5),
            **_codes(quant_mode=1, dtype=290),
            "mm_y_dtype": 15,
        },
    ),
]
