"""npu_moe_finalize_routing: the experts' rows merged back into one row per token."""

from __future__ import annotations

import functools
import itertools
import math

import torch

from softnpu import chips
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._native import fits, floats
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._indices import inside
from torch_npu.ops.moe._routing import FLOATS, take_rows


def _stepwise(rows: torch.Tensor, scales: torch.Tensor | None) -> bool:
    """Whether every operation rounds: CANN's kernels before Ascend950 compute float16 in float16."""
    whole = scales is None or scales.dtype == torch.float16
    return rows.dtype == torch.float16 and whole and chips.current().family != "A5"


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _top_k(scales: torch.Tensor | None, k: int | None) -> int:
    return scales.size(1) if scales is not None else (1 if k is None else k)


@npu_op(
    "npu_moe_finalize_routing(Tensor expanded_permuted_rows, Tensor? skip1, Tensor? skip2, "
    "Tensor? bias, Tensor? scales, Tensor expanded_src_to_dst_row, Tensor? export_for_source_row, "
    "int? drop_pad_mode=0, int? k=1) -> Tensor"
)
def npu_moe_finalize_routing(
    expanded_permuted_rows,
    skip1,
    skip2,
    bias,
    scales,
    expanded_src_to_dst_row,
    export_for_source_row,
    drop_pad_mode,
    k,
):
    r"""Adds up, for every token, the weighted results of its K experts and the skip connections.

    $$ out_i = skip1_i + skip2_i + \sum_{j<K} scales_{i,j} \,
       (rows_{d(i,j)} + bias_{expert_{i,j}}) $$

    where $d(i,j)$ is `expanded_src_to_dst_row[j * N + i]` (by column) or `[i * K + j]` (by row); a
    dropped row ($-1$) counts as zeros.

    Args:
        expanded_permuted_rows: what the experts computed; (N * K, H) without dropping, (E, C, H)
            with; float16, bfloat16 or float32.
        skip1: added to the result, (N, H), or None.
        skip2: added to the result, (N, H), or None; only together with `skip1`.
        bias: of each expert, (E, H), or None; needs `export_for_source_row`.
        scales: the weight of each expert, (N, K), or None for 1; the rows' dtype, or float32.
        expanded_src_to_dst_row: the row that holds a token's result, (N * K), int32; in
            [0, N * K) without dropping, in [-1, E * C) with.
        export_for_source_row: the experts of each token, (N, K), int32, in [0, E).
        drop_pad_mode: 0 no dropping, by column; 1 dropping, by column; 2 no dropping, by row;
            3 dropping, by row.
        k: how many experts a token has where `scales` does not say it.

    Returns:
        One row per token, (N, H), with the dtype of `expanded_permuted_rows`; summed in float32, on chips before
        Ascend950 float16 in float16.
    """
    rows = expanded_permuted_rows.reshape(-1, expanded_permuted_rows.size(-1))
    top_k = _top_k(scales, k)
    tokens = expanded_src_to_dst_row.numel() // top_k
    if drop_pad_mode in (2, 3):
        index = expanded_src_to_dst_row.reshape(tokens, top_k)
    else:
        index = expanded_src_to_dst_row.reshape(top_k, tokens).t()

    held = _same if _stepwise(rows, scales) else wide

    def term(j):
        found = held(take_rows(rows, index[:, j]))
        if bias is not None:
            found = found + held(bias).index_select(0, export_for_source_row[:, j].long())
        return found if scales is None else found * held(scales[:, j : j + 1])

    skips = [held(skip) for skip in (skip1, skip2) if skip is not None]
    # one expert's slot at a time: no (N, K, H) copy of the rows
    out = functools.reduce(torch.add, itertools.chain(skips, map(term, range(top_k))))
    return out.to(rows.dtype)


@npu_moe_finalize_routing.check
def _(
    expanded_permuted_rows,
    skip1,
    skip2,
    bias,
    scales,
    expanded_src_to_dst_row,
    export_for_source_row,
    drop_pad_mode,
    k,
):
    rows, index = expanded_permuted_rows, expanded_src_to_dst_row
    mode = 0 if drop_pad_mode is None else drop_pad_mode
    must.choice("drop_pad_mode", mode, (0, 1, 2, 3))
    dropping = mode in (1, 3)
    must.dtype("expanded_permuted_rows", rows, *FLOATS)
    must.ndim("expanded_permuted_rows", rows, 3 if dropping else 2)
    must.dtype("expanded_src_to_dst_row", index, torch.int32)
    must.ndim("expanded_src_to_dst_row", index, 1)
    must.dtype("scales", scales, rows.dtype, torch.float32)
    must.ndim("scales", scales, 2)
    top_k = _top_k(scales, k)
    if scales is not None and k is not None and k > 1:
        must.hold(k == top_k, "k", f"the second size of 'scales' ({top_k})", k)
    must.hold(top_k > 0, "k", "positive", top_k)
    must.hold(
        index.numel() % top_k == 0,
        "expanded_src_to_dst_row",
        f"of a length that {top_k} experts a token divide",
        index.numel(),
    )
    tokens, hidden = index.numel() // top_k, rows.size(-1)
    must.shape("scales", scales, (tokens, top_k))
    if not dropping:
        must.shape("expanded_permuted_rows", rows, (index.numel(), hidden))
    for name, skip in (("skip1", skip1), ("skip2", skip2)):
        must.same_dtype(name, skip, "expanded_permuted_rows", rows)
        must.shape(name, skip, (tokens, hidden))
    if skip1 is None:
        must.hold(skip2 is None, "skip2", "None where 'skip1' is None", "a tensor")
    must.same_dtype("bias", bias, "expanded_permuted_rows", rows)
    must.shape("bias", bias, (rows.size(0) if dropping else None, hidden))
    must.dtype("export_for_source_row", export_for_source_row, torch.int32)
    must.shape("export_for_source_row", export_for_source_row, (tokens, top_k))
    if bias is not None:
        must.present("export_for_source_row", export_for_source_row, "together with 'bias'")
        inside("export_for_source_row", export_for_source_row, bias.size(0))
    count = math.prod(rows.shape[:-1])
    inside("expanded_src_to_dst_row", index, count, low=-1 if dropping else 0)


@npu_moe_finalize_routing.native
def _(
    expanded_permuted_rows,
    skip1,
    skip2,
    bias,
    scales,
    expanded_src_to_dst_row,
    export_for_source_row,
    drop_pad_mode,
    k,
):
    rows, index = expanded_permuted_rows, expanded_src_to_dst_row
    if not fits(rows, skip1, skip2, bias) or not floats(scales):
        return NotImplemented
    top_k = _top_k(scales, k)
    by_row = drop_pad_mode in (2, 3)
    places = index.view(-1, top_k) if by_row else index.view(top_k, -1).t()
    return torch.ops.softnpu.finalize_routing(
        rows.reshape(-1, rows.size(-1)),
        places,
        scales,
        bias,
        export_for_source_row,
        skip1,
        skip2,
        _stepwise(rows, scales),
    )


npu_moe_finalize_routing.samples = [
    Sample(
        lambda make: (
            make(8, 6), make(4, 6), make(4, 6), make(3, 6), make(4, 2),
            make(8, dtype=torch.int32, low=0, high=8),
            make(4, 2, dtype=torch.int32, low=0, high=3),
        )
    ),
    Sample(
        lambda make: (
            make(3, 2, 6), None, None, None, make(4, 2),
            make(8, dtype=torch.int32, low=-1, high=6), None,
        ),
        {"drop_pad_mode": 3},
        name="dropping, by row",
    ),
    Sample(
        lambda make: (
            make(8, 6, dtype=torch.bfloat16), None, None, None, None,
            make(8, dtype=torch.int32, low=0, high=8), None,
        ),
        {"drop_pad_mode": 2, "k": 2},
        name="without scales",
    ),
]  # fmt: skip
