"""What npu_alltoallv_gmm and npu_gmm_alltoallv share: constraints, the order of rows, products by expert."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from softnpu import chips
from torch_npu.ops import _check as must
from torch_npu.ops._shared._gemm import product
from torch_npu.ops.comm import _group

_HALF = (torch.float16, torch.bfloat16)
_RANKS = (8, 16, 32, 64, 128)
_COUNTS = 256  # of experts on all ranks
_ROWS, _WIDTH, _SHARED_WIDTH = 52428800, 65536, 12288


def check_operands(
    gmm_x, gmm_weight, hcom, ep_world_size, send_counts, recv_counts, send_counts_tensor, recv_counts_tensor,
    mm_x, mm_weight, trans_gmm_weight, trans_mm_weight, comm_mode, rows_by, rows, most_experts,
    ranks_950,
):  # fmt: skip
    """All constraints; the counts `rows`, called `rows_by`, add up to the rows of gmm_x."""
    must.dtype("gmm_x", gmm_x, *_HALF)
    must.ndim("gmm_x", gmm_x, 2)
    must.same_dtype("gmm_weight", gmm_weight, "gmm_x", gmm_x)
    must.ndim("gmm_weight", gmm_weight, 3)
    ascend950 = chips.current().family == "A5"
    must.choice("ep_world_size", ep_world_size, ranks_950 if ascend950 else _RANKS)
    _group.check_name("hcom", hcom, "ep_world_size", ep_world_size)
    experts, inner, outer = weight_shape(gmm_weight, trans_gmm_weight)
    must.hold(inner == gmm_x.shape[1], "gmm_weight", f"of H1 = {gmm_x.shape[1]}", inner)
    fits = 0 < experts <= most_experts
    must.hold(fits, "gmm_weight", f"of 1 to {most_experts} experts", experts)
    must.hold(
        0 < inner < _WIDTH and 0 < outer < _WIDTH,
        "gmm_weight",
        f"of H1 and N1 below {_WIDTH}",
        (inner, outer),
    )
    total = experts * ep_world_size
    must.hold(
        total <= _COUNTS,
        "ep_world_size",
        f"such that e * ep_world_size is at most {_COUNTS}",
        total,
    )
    for name, counts in (("send_counts", send_counts), ("recv_counts", recv_counts)):
        must.hold(len(counts) == total, name, f"of e * ep_world_size = {total} counts", len(counts))
        must.hold(
            all(0 <= c <= _ROWS for c in counts), name, f"counts in [0, {_ROWS}]", list(counts)
        )
    must.hold(
        sum(rows) == gmm_x.shape[0],
        rows_by,
        f"counts that add up to the rows of gmm_x ({gmm_x.shape[0]})",
        sum(rows),
    )
    must.unset("send_counts_tensor", send_counts_tensor)
    must.unset("recv_counts_tensor", recv_counts_tensor)
    must.choice("comm_mode", comm_mode, (None, "ai_cpu", "aiv"))
    must.hold((mm_x is None) == (mm_weight is None), "mm_weight", "given with mm_x", mm_weight)
    if mm_x is not None:
        must.same_dtype("mm_x", mm_x, "gmm_x", gmm_x)
        must.ndim("mm_x", mm_x, 2)
        must.same_dtype("mm_weight", mm_weight, "mm_x", mm_x)
        must.ndim("mm_weight", mm_weight, 2)
        width = mm_weight.shape[1 if trans_mm_weight else 0]
        must.hold(width == mm_x.shape[1], "mm_weight", f"of H2 = {mm_x.shape[1]}", width)
        must.hold(0 < width <= _SHARED_WIDTH, "mm_x", f"of H2 up to {_SHARED_WIDTH}", width)
        width = mm_weight.shape[0 if trans_mm_weight else 1]
        must.hold(0 < width < _WIDTH, "mm_weight", f"of N2 below {_WIDTH}", width)


def check_shared(gmm_x: torch.Tensor, mm_x: torch.Tensor) -> None:
    """A token of the shared expert has a routed row for each of its 2 to 8 experts."""
    rows, tokens = gmm_x.shape[0], mm_x.shape[0]
    fits = tokens > 0 and rows % tokens == 0 and 2 <= rows // tokens <= 8
    expected = f"of a half to an eighth of the {rows} rows of 'gmm_x'"
    must.hold(fits, "mm_x", expected, tokens)


def weight_shape(weight: torch.Tensor, transposed: bool) -> tuple[int, int, int]:
    """(e, H1, N1) of a weight that may be stored as (e, N1, H1)."""
    experts, a, b = weight.shape
    return (experts, b, a) if transposed else (experts, a, b)


def by_rank(counts: Sequence[int], experts: int) -> list[int]:
    """Counts a rank; the given ones are ordered by rank, then expert."""
    return [sum(counts[r : r + experts]) for r in range(0, len(counts), experts)]


def by_expert(counts: Sequence[int], experts: int) -> list[int]:
    """Counts an expert."""
    return [sum(counts[e::experts]) for e in range(experts)]


def to_experts(rows: torch.Tensor, counts: Sequence[int], experts: int) -> torch.Tensor:
    """Permute: rows that are ordered by rank, then expert, in the order of expert, then rank."""
    parts = rows.split(list(counts))
    return torch.cat([parts[i] for e in range(experts) for i in range(e, len(counts), experts)])


def to_ranks(rows: torch.Tensor, counts: Sequence[int], experts: int) -> torch.Tensor:
    """Unpermute: the other way round."""
    ranks = len(counts) // experts
    order = [r * experts + e for e in range(experts) for r in range(ranks)]
    parts = dict(zip(order, rows.split([counts[i] for i in order]), strict=True))
    return torch.cat([parts[i] for i in range(len(counts))])


def grouped(
    rows: torch.Tensor, counts: Sequence[int], weight: torch.Tensor, transposed: bool
) -> torch.Tensor:
    """Each expert's rows times its matrix."""
    matrices = weight.transpose(1, 2) if transposed else weight
    parts = rows.split(list(counts))
    done = [product(part, matrices[e]) for e, part in enumerate(parts)]
    return torch.cat(done).to(rows.dtype)


def shared(mm_x, mm_weight, transposed):
    """The shared expert's product; None without one."""
    if mm_x is None:
        return None
    return product(mm_x, mm_weight.t() if transposed else mm_weight).to(mm_x.dtype)


def shared_meta(mm_x, mm_weight, transposed):
    if mm_x is None:
        return None
    return mm_x.new_empty((mm_x.shape[0], mm_weight.shape[0 if transposed else 1]))
