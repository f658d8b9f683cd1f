"""npu_moe_compute_expert_tokens: where each expert's rows end."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._indices import first_bad


@npu_op(
    "npu_moe_compute_expert_tokens(Tensor sorted_expert_for_source_row, int num_expert) -> Tensor"
)
def npu_moe_compute_expert_tokens(sorted_expert_for_source_row, num_expert):
    r"""For every expert, the number of rows that belong to it or to a smaller one.

    $$ out_i = |\{ r : sorted\_expert\_for\_source\_row_r \le i \}|, \quad 0 \le i < num\_expert $$

    Args:
        sorted_expert_for_source_row: the expert of each row in non-decreasing order; 1 dimension,
            int32, fewer than $2^{24}$ values, none negative.
        num_expert: how many experts there are, 1 to 2048.

    Returns:
        The cumulative counts, int32, of shape (num_expert).

    Constraints:
        A value of `num_expert` or above counts for no expert (upstream's own test gives such).
    """
    rows = sorted_expert_for_source_row.contiguous()
    experts = torch.arange(num_expert, dtype=rows.dtype, device=rows.device)
    return torch.searchsorted(rows, experts, right=True, out_int32=True)


@npu_moe_compute_expert_tokens.check
def _(sorted_expert_for_source_row, num_expert):
    rows = sorted_expert_for_source_row
    must.dtype("sorted_expert_for_source_row", rows, torch.int32)
    must.ndim("sorted_expert_for_source_row", rows, 1)
    must.hold(
        rows.numel() <= 2**24,
        "sorted_expert_for_source_row",
        "of at most 2**24 values",
        rows.numel(),
    )
    must.hold(0 < num_expert <= 2048, "num_expert", "within [1, 2048]", num_expert)
    if must.has_data(rows):
        host = rows.cpu()
        falls = torch.zeros_like(host, dtype=torch.bool)
        falls[1:] = host[1:] < host[:-1]
        first_bad("sorted_expert_for_source_row", "non-negative", host, host < 0)
        first_bad("sorted_expert_for_source_row", "non-decreasing", host, falls)


npu_moe_compute_expert_tokens.samples = [
    Sample(lambda make: (make(12, dtype=torch.int32, low=0, high=4).sort().values, 4)),
    Sample(lambda make: (make(1, dtype=torch.int32, low=2, high=3), 5), name="one row"),
]
