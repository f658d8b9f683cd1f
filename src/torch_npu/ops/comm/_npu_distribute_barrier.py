"""_npu_distribute_barrier: waits for all ranks of a group."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.comm import _group

_ELASTIC, _HEAD = 1, 4


def _left(elastic_info, world_size):
    """The ranks that are left, by their places."""
    first = _HEAD + world_size
    return elastic_info[first : first + int(elastic_info[1])].tolist()


@npu_op(
    "_npu_distribute_barrier(Tensor x_ref, str group, int world_size, *, Tensor? time_out=None,"
    " Tensor? elastic_info=None) -> Tensor",
    compiled="call",
)
def _npu_distribute_barrier(x_ref, group, world_size, elastic_info):
    r"""Waits until every rank of the group has come here.

    Args:
        x_ref: any tensor; orders the barrier among the operators that read and make it.
        group: the name of the group.
        world_size: its number of ranks.
        time_out: how long to wait, (1,) int32; the group's own limit holds here.
        elastic_info: for a group that has lost ranks, (4 + 2 * world_size) int32: 1; how many are left; two numbers that
            only the MoE operators read; the place of each rank among those that are left, or -1; and the rank at each
            place, or -1. The ranks that are left wait for each other. Where it begins with another number, all wait.

    Returns:
        A copy of `x_ref`.

    Differs from upstream: upstream returns `x_ref` itself.
    """
    if elastic_info is None or elastic_info[0] != _ELASTIC:
        _group.find(group).all_reduce(torch.zeros(1))
    else:
        _group.find(group).wait_for(_left(elastic_info, world_size))
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
    must.dtype("elastic_info", elastic_info, torch.int32)
    must.shape("elastic_info", elastic_info, (_HEAD + 2 * world_size,))
    if elastic_info is not None and must.has_data(elastic_info) and elastic_info[0] == _ELASTIC:
        count, places = int(elastic_info[1]), elastic_info[_HEAD : _HEAD + world_size].tolist()
        ok = 1 <= count <= world_size
        must.hold(ok, "elastic_info", f"of 1 to {world_size} ranks that are left", count)
        left = _left(elastic_info, world_size)
        ok = len(set(left)) == count and all(
            0 <= rank < world_size and places[rank] == place for place, rank in enumerate(left)
        )
        must.hold(ok, "elastic_info", "of two lists that agree", f"{places} and {left}")


@_npu_distribute_barrier.meta
def _(x_ref):
    return torch.empty_like(x_ref)


_npu_distribute_barrier.samples = [
    Sample(lambda make: (make(3), "softnpu%mirror_2", 2)),
    Sample(
        lambda make: (make(3), "softnpu%mirror_2", 2),
        lambda make: {"elastic_info": make(8, dtype=torch.int32, low=0, high=1)},
    ),
]
