"""Which collective each of PyTorch's operators of torch.distributed is, and what HCCL and the graph engine call it."""

from __future__ import annotations

#: operator of namespace c10d -> collective
KINDS = {
    "send": "send", "recv_": "recv", "recv_any_source_": "recv", "broadcast_": "broadcast",
    "allreduce_": "all_reduce", "allreduce_coalesced_": "all_reduce", "allgather_": "all_gather",
    "_allgather_base_": "all_gather", "allgather_coalesced_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather", "reduce_scatter_": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter", "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "reduce_": "reduce", "gather_": "gather", "scatter_": "scatter", "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all", "barrier": "barrier",
}  # fmt: skip

#: collective -> HCCL's operator
HCCL_NAMES = {
    "all_reduce": "allReduce", "all_gather": "allGather", "broadcast": "broadcast", "reduce": "reduce",
    "reduce_scatter": "reduceScatter", "all_to_all": "alltoallv", "scatter": "scatter", "gather": "gather",
    "send": "send", "recv": "receive", "barrier": "barrier",
}  # fmt: skip

#: functional collective (operator of namespace _c10d_functional) -> type of its node in the GE graph
GE_TYPES = {
    "all_reduce": "HcomAllReduce", "all_gather_into_tensor": "HcomAllGather",
    "reduce_scatter_tensor": "HcomReduceScatter", "all_to_all_single": "HcomAllToAllV", "broadcast": "HcomBroadcast",
}  # fmt: skip
