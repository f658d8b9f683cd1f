"""torch_npu.distributed: the `hccl` backend of torch.distributed, and what upstream adds to it.

    torch.distributed.init_process_group("hccl")

Everything of torch.distributed works on npu tensors then. docs/distributed.md tells how.
"""

from __future__ import annotations

from torch.distributed import _make_nccl_premul_sum as _make_hccl_premul_sum
from torch.distributed import _verify_params_across_processes

from torch_npu.distributed.distributed_c10d import (
    all_gather_into_tensor_uneven,
    is_hccl_available,
    reduce_scatter_tensor_uneven,
    reinit_process_group,
)

__all__ = [
    "_make_hccl_premul_sum",
    "_verify_params_across_processes",
    "all_gather_into_tensor_uneven",
    "is_available",
    "is_hccl_available",
    "reduce_scatter_tensor_uneven",
    "reinit_process_group",
]


def is_available() -> bool:
    """Whether torch.distributed, and with it the hccl backend, can be used."""
    import torch.distributed

    return torch.distributed.is_available()


def _is_support_hccl_comm_name() -> bool:
    """Whether groups can be given a name (`_set_hccl_comm_name`)."""
    return True
