"""torch_npu._C._distributed_c10d: the process group class, where public projects import it from."""

from __future__ import annotations

from torch.distributed import _verify_params_across_processes

from torch_npu.distributed import _is_support_hccl_comm_name
from torch_npu.distributed._backend import ProcessGroupHCCL

__all__ = ["ProcessGroupHCCL", "_is_support_hccl_comm_name", "_verify_params_across_processes"]
