"""npu_ffn_to_attention: an FFN worker writes its results into the windows of the attention workers."""

from __future__ import annotations

import torch
from torch.fx.node import has_side_effect

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.comm import _group
from torch_npu.ops.comm import _worker_tables as workers

_MAX_TOKENS = 512


@npu_op(
    "npu_ffn_to_attention(Tensor x, Tensor session_ids, Tensor micro_batch_ids, Tensor token_ids, "
    "Tensor expert_offsets, Tensor actual_token_num, str group, int world_size, "
    "int[] token_info_table_shape, int[] token_data_shape, *, Tensor? attn_rank_table=None) -> ()",
    chips=("A3",),
    ge="FFNToAttention",
    compiled="call",
)
def npu_ffn_to_attention(
    x,
    session_ids,
    micro_batch_ids,
    token_ids,
    expert_offsets,
    actual_token_num,
    group,
    token_info_table_shape,
    token_data_shape,
    attn_rank_table,
):
    r"""Writes each row into the window of the attention worker that the token came from, and marks it as arrived.

    The window of an attention worker begins with a table of int32, (micro batches, BS, experts a token), in which 1 means
    arrived; from the next multiple of 512 bytes on it holds the rows, (micro batches, BS, experts a token, HS).

    Args:
        x: (Y, H), float16 or bfloat16.
        session_ids: (Y,), int32: the attention worker of each row.
        micro_batch_ids: (Y,), int32.
        token_ids: (Y,), int32: the token of each row in its micro batch.
        expert_offsets: (Y,), int32: which of the token's experts the row comes from.
        actual_token_num: (1,), int64: how many of the rows are sent.
        group: the name of the group; windows are exchanged by `_window_register_and_exchange` of its backend.
        world_size: its ranks, 2 to 768.
        token_info_table_shape: micro batches, BS, experts a token.
        token_data_shape: micro batches, BS, experts a token, HS.
        attn_rank_table: the rank of each attention worker, int32; without it, worker i is rank i.

    Returns:
        Nothing.

    Constraints:
        H 1024 to 8192, HS up to 8320, BS up to 512, one micro batch.

    Differs from upstream: ranks are processes of one machine. In a group `softnpu%mirror_N` nothing is kept.
    """
    count, width = int(actual_token_num[0]), x.shape[1]
    sessions = session_ids[:count].long()
    ranks = sessions if attn_rank_table is None else attn_rank_table[sessions]
    members = _group.find(group)
    where = [t[:count].long() for t in (micro_batch_ids, token_ids, expert_offsets)]
    for rank in ranks.unique().tolist():
        info, data = workers.tables(
            members, rank, token_info_table_shape, token_data_shape, x.dtype
        )
        chosen = ranks == rank
        batch, token, expert = (t[chosen] for t in where)
        data[batch, token, expert, :width] = x[:count][chosen]
        info[batch, token, expert] = 1


@npu_ffn_to_attention.check
def _(
    x,
    session_ids,
    micro_batch_ids,
    token_ids,
    expert_offsets,
    actual_token_num,
    group,
    world_size,
    token_info_table_shape,
    token_data_shape,
    attn_rank_table,
):
    must.dtype("x", x, torch.float16, torch.bfloat16)
    must.ndim("x", x, 2)
    workers.check_width("x", x.shape[1])
    workers.check_group(group, world_size)
    info, data = list(token_info_table_shape), list(token_data_shape)
    must.hold(len(info) == 3, "token_info_table_shape", "of length 3", info)
    must.hold(len(data) == 4, "token_data_shape", "of length 4", data)
    must.hold(data[:3] == info, "token_data_shape", f"{info}, then HS", data)
    must.hold(info[0] == 1, "token_info_table_shape", "of one micro batch", info)
    ok = 0 < data[1] <= _MAX_TOKENS
    must.hold(ok, "token_data_shape", f"of 1 to {_MAX_TOKENS} tokens", data)
    workers.check_width("token_data_shape", data[3], workers.WIDTH[1] + workers.SCALE_ROOM)
    must.hold(data[3] >= x.shape[1], "token_data_shape", f"of rows of {x.shape[1]} or more", data)
    must.dtype("attn_rank_table", attn_rank_table, torch.int32)
    must.ndim("attn_rank_table", attn_rank_table, 1)
    workers_ = world_size if attn_rank_table is None else attn_rank_table.shape[0]
    must.hold(
        attn_rank_table is None or workers_ < world_size,
        "attn_rank_table",
        f"of at most {world_size - 1} workers",
        workers_,
    )
    sizes = (workers_, *info)
    names = "session_ids", "micro_batch_ids", "token_ids", "expert_offsets"
    every = session_ids, micro_batch_ids, token_ids, expert_offsets
    what = "attention workers", "micro batches", "BS", "experts a token"
    for name, tensor in zip(names, every, strict=True):
        must.dtype(name, tensor, torch.int32)
        must.shape(name, tensor, (x.shape[0],))
    must.dtype("actual_token_num", actual_token_num, torch.int64)
    must.shape("actual_token_num", actual_token_num, (1,))
    workers.check_values("actual_token_num", actual_token_num, x.shape[0] + 1, "Y + 1")
    if must.has_data(actual_token_num):
        count = int(actual_token_num[0])
        for name, tensor, size, label in zip(names, every, sizes, what, strict=True):
            workers.check_values(name, tensor[:count], size, label)


@npu_ffn_to_attention.meta
def _():
    return None


has_side_effect(npu_ffn_to_attention.overload)


def _inputs(make, dtype):
    """Two rows of three for the one attention worker of a mirrored group."""

    def ids(high):
        return make(3, dtype=torch.int32, low=0, high=high)

    count = torch.full_like(make(1, dtype=torch.int64, low=0, high=2), 2)
    shapes = [1, 4, 2], [1, 4, 2, 1152]
    x = make(3, 1024, dtype=dtype)
    return (x, ids(1), ids(1), ids(4), ids(2), count, "softnpu%mirror_2", 2, *shapes)


npu_ffn_to_attention.samples = [
    Sample(lambda make: _inputs(make, torch.float16)),
    Sample(
        lambda make: _inputs(make, torch.bfloat16),
        lambda make: {"attn_rank_table": make(1, dtype=torch.int32, low=0, high=1)},
    ),
]
