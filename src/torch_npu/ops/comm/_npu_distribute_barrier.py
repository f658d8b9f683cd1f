"""_npu_distribute_barrier: waits for all ranks of a group."""

from __future__ import annotations

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.comm import _group


@npu_op(
    "_npu_distribute_barrier(Tensor x_ref, str group, int world_size, *, Tensor? time_out=None,"
    " Tensor? elastic_info=None) -> Tensor",
    compiled="call",
)
def _npu_distribute_barrier(x_ref, group):
    r"""Waits until every rank of the group has come here.

    Args:
        x_ref: any tensor; orders the barrier among the operators that read and make it.
        group: the name of the group.
        world_size: its number of ranks.
        time_out: how long to wait, (1,) int32; the group's own limit holds here.
        elastic_info: the ranks that are left of a group; not implemented here.

    Returns:
        A copy of `x_ref`.

    Differs from upstream: upstream returns `x_ref` itself.
    """
    _group.find(group).all_reduce(torch.zeros(1))
    return x_ref.clone()


@_npu_distribute_barrier.check
def _(x_ref, group, world_size, time_out, elastic_info):
    kinds = (torch.float16, torch.bfloat16, torch.float32, torch.bool, torch.int8)
    more = (torch.int16, torch.int32, torch.int64, torch.uint8, torch.float64)
    must.dtype("x_ref", x_ref, *kinds, *more)
    must.hold(2 <= world_size <= 768, "world_size", "in [2, 768]", world_size)
    _group.check_name("group", group, "world_size", world_size)
    must.dtype("time_out", time_out, torch.int32)
    must.shape("time_out", time_out, (1,))
    expected = "None (a group that lost ranks is not implemented here)"
    must.hold(elastic_info is None, "elastic_info", expected, "a tensor", ErrCode.NOT_SUPPORT)


@_npu_distribute_barrier.meta
def _(x_ref):
    return torch.empty_like(x_ref)


_npu_distribute_barrier.samples = [Sample(lambda make: (make(3), "softnpu%mirror_2", 2))]
