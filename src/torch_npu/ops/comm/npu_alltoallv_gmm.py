"""npu_alltoallv_gmm: tokens go to the ranks of their experts and through their matrices."""

from __future__ import annotations

import torch

from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.comm import _group, _grouped


@npu_op(
    "npu_alltoallv_gmm(Tensor gmm_x, Tensor gmm_weight, str hcom, int ep_world_size, int[] send_counts, "
    "int[] recv_counts, *, Tensor? send_counts_tensor=None, Tensor? recv_counts_tensor=None, "
    "Tensor? mm_x=None, Tensor? mm_weight=None, bool trans_gmm_weight=False, bool trans_mm_weight=False, "
    "bool permute_out_flag=False, str? comm_mode=None) -> (Tensor, Tensor, Tensor)",
    product=True,
)
def npu_alltoallv_gmm(
    gmm_x,
    gmm_weight,
    hcom,
    send_counts,
    recv_counts,
    mm_x,
    mm_weight,
    trans_gmm_weight,
    trans_mm_weight,
    permute_out_flag,
):
    r"""Sends tokens to the ranks of their experts, orders them by expert and multiplies; beside it a shared expert.

    $$ p = \mathrm{permute}(\mathrm{alltoallv}(x)), \quad y_e = p_e W_e, \quad y' = x' W' $$

    Args:
        gmm_x: x, (BSK, H1), float16 or bfloat16: this rank's tokens, ordered by rank, then expert.
        gmm_weight: W, (e, H1, N1), the matrices of this rank's e experts.
        hcom: the name of the group.
        ep_world_size: its number of ranks: 8, 16, 32, 64 or 128.
        send_counts: e * ep_world_size counts: tokens for each rank's experts, by rank, then expert.
        recv_counts: e * ep_world_size counts: tokens from each rank for each expert of this rank.
        send_counts_tensor: reserved.
        recv_counts_tensor: reserved.
        mm_x: x' of the shared expert, (BS, H2).
        mm_weight: W', (H2, N2).
        trans_gmm_weight: whether gmm_weight is stored as (e, N1, H1).
        trans_mm_weight: whether mm_weight is stored as (N2, H2).
        permute_out_flag: whether p is returned.
        comm_mode: None, "ai_cpu" or "aiv"; the result is the same.

    Returns:
        y of shape (A, N1), where A is the sum of recv_counts; y' of shape (BS, N2), or None; p of shape (A, H1),
        or None.

    Differs from upstream: accepted on every chip, and without the lower limit of 2 MB of communication.
    """
    experts = gmm_weight.shape[0]
    arrived = _group.find(hcom).all_to_all(
        gmm_x, _grouped.by_rank(send_counts, experts), _grouped.by_rank(recv_counts, experts)
    )
    permuted = _grouped.to_experts(arrived, recv_counts, experts)
    counts = _grouped.by_expert(recv_counts, experts)
    y = _grouped.grouped(permuted, counts, gmm_weight, trans_gmm_weight)
    shared = _grouped.shared(mm_x, mm_weight, trans_mm_weight)
    return y, shared, permuted if permute_out_flag else None


@npu_alltoallv_gmm.check
def _(
    gmm_x,
    gmm_weight,
    hcom,
    ep_world_size,
    send_counts,
    recv_counts,
    send_counts_tensor,
    recv_counts_tensor,
    mm_x,
    mm_weight,
    trans_gmm_weight,
    trans_mm_weight,
    comm_mode,
):
    _grouped.check_operands(
        gmm_x, gmm_weight, hcom, ep_world_size, send_counts, recv_counts, send_counts_tensor,
        recv_counts_tensor, mm_x, mm_weight, trans_gmm_weight, trans_mm_weight, comm_mode,
        "send_counts", send_counts, 48, (2, 4, 8, 16, 32, 64, 128, 256),
    )  # fmt: skip
    if mm_x is not None:
        _grouped.check_shared(gmm_x, mm_x)


@npu_alltoallv_gmm.meta
def _(
    gmm_x,
    gmm_weight,
    recv_counts,
    mm_x,
    mm_weight,
    trans_gmm_weight,
    trans_mm_weight,
    permute_out_flag,
):
    rows = sum(recv_counts)
    width = _grouped.weight_shape(gmm_weight, trans_gmm_weight)[2]
    permuted = gmm_x.new_empty((rows, gmm_x.shape[1])) if permute_out_flag else None
    shared = _grouped.shared_meta(mm_x, mm_weight, trans_mm_weight)
    return gmm_x.new_empty((rows, width)), shared, permuted


npu_alltoallv_gmm.samples = [
    Sample(lambda make: (make(16, 8, dtype=torch.float16), make(2, 8, 4, dtype=torch.float16),
                         "softnpu%mirror_8", 8, [1] * 16, [1] * 16),
           lambda make: {"permute_out_flag": True, "mm_x": make(4, 6, dtype=torch.float16),
                         "mm_weight": make(6, 5, dtype=torch.float16)}),
    Sample(lambda make: (make(24, 8, dtype=torch.bfloat16), make(2, 4, 8, dtype=torch.bfloat16),
                         "softnpu%mirror_8", 8, [2, 1] * 8, [2, 1] * 8),
           lambda make: {"trans_gmm_weight": True, "permute_out_flag": True, "trans_mm_weight": True,
                         "mm_x": make(4, 6, dtype=torch.bfloat16), "mm_weight": make(5, 6, dtype=torch.bfloat16)}),
]  # fmt: skip
