"""npu_gmm_alltoallv: tokens go through their experts' matrices and back to the ranks they came from."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.comm import _group, _grouped


@npu_op(
    "npu_gmm_alltoallv(Tensor gmm_x, Tensor gmm_weight, str hcom, int ep_world_size, int[] send_counts, "
    "int[] recv_counts, *, Tensor? send_counts_tensor=None, Tensor? recv_counts_tensor=None, "
    "Tensor? mm_x=None, Tensor? mm_weight=None, bool trans_gmm_weight=False, bool trans_mm_weight=False, "
    "str? comm_mode=None) -> (Tensor, Tensor)",
    product=True,
)
def npu_gmm_alltoallv(
    gmm_x,
    gmm_weight,
    hcom,
    send_counts,
    recv_counts,
    mm_x,
    mm_weight,
    trans_gmm_weight,
    trans_mm_weight,
):
    r"""Multiplies tokens by their experts' matrices and sends them back to their ranks; beside it a shared expert.

    $$ g_e = x_e W_e, \quad y = \mathrm{alltoallv}(\mathrm{unpermute}(g)), \quad y' = x' W' $$

    Args:
        gmm_x: x, (A, H1), float16 or bfloat16: this rank's tokens, ordered by expert, then rank.
        gmm_weight: W, (e, H1, N1), the matrices of this rank's e experts.
        hcom: the name of the group.
        ep_world_size: its number of ranks: 8, 16, 32, 64 or 128.
        send_counts: e * ep_world_size counts: tokens for each rank from each expert, by rank, then expert.
        recv_counts: e * ep_world_size counts: tokens from each rank's experts, by rank, then expert.
        send_counts_tensor: reserved.
        recv_counts_tensor: reserved.
        mm_x: x' of the shared expert, (BS, H2).
        mm_weight: W', (H2, N2).
        trans_gmm_weight: whether gmm_weight is stored as (e, N1, H1).
        trans_mm_weight: whether mm_weight is stored as (N2, H2).
        comm_mode: None, "ai_cpu" or "aiv"; the result is the same.

    Returns:
        y of shape (BSK, N1), where BSK is the sum of recv_counts; y' of shape (BS, N2), or None.

    Differs from upstream: accepted on every chip, and without the lower limit of 2 MB of communication.
    """
    experts = gmm_weight.shape[0]
    counts = _grouped.by_expert(send_counts, experts)
    done = _grouped.grouped(gmm_x, counts, gmm_weight, trans_gmm_weight)
    y = _group.find(hcom).all_to_all(
        _grouped.to_ranks(done, send_counts, experts),
        _grouped.by_rank(send_counts, experts),
        _grouped.by_rank(recv_counts, experts),
    )
    return y, _grouped.shared(mm_x, mm_weight, trans_mm_weight)


@npu_gmm_alltoallv.check
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
        "send_counts", send_counts, 32, (2, 4, 8, 16, 32, 64),
    )  # fmt: skip
    expected = "False without mm_weight"
    must.hold(mm_x is not None or not trans_mm_weight, "trans_mm_weight", expected, True)


@npu_gmm_alltoallv.meta
def _(gmm_x, gmm_weight, recv_counts, mm_x, mm_weight, trans_gmm_weight, trans_mm_weight):
    width = _grouped.weight_shape(gmm_weight, trans_gmm_weight)[2]
    y = gmm_x.new_empty((sum(recv_counts), width))
    return y, _grouped.shared_meta(mm_x, mm_weight, trans_mm_weight)


npu_gmm_alltoallv.samples = [
    Sample(lambda make: (make(16, 8, dtype=torch.float16), make(2, 8, 4, dtype=torch.float16),
                         "softnpu%mirror_8", 8, [1] * 16, [1] * 16),
           lambda make: {"mm_x": make(3, 6, dtype=torch.float16), "mm_weight": make(6, 5, dtype=torch.float16)}),
    Sample(lambda make: (make(24, 8, dtype=torch.bfloat16), make(2, 4, 8, dtype=torch.bfloat16),
                         "softnpu%mirror_8", 8, [2, 1] * 8, [2, 1] * 8),
           lambda make: {"trans_gmm_weight": True, "trans_mm_weight": True,
                         "mm_x": make(3, 6, dtype=torch.bfloat16), "mm_weight": make(5, 6, dtype=torch.bfloat16)}),
]  # fmt: skip
