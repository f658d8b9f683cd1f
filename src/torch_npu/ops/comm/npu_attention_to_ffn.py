"""npu_attention_to_ffn: an attention worker writes its tokens into the windows of the FFN workers."""

from __future__ import annotations

import torch
from torch.fx.node import has_side_effect

from torch_npu.ops import _check as must
from torch_npu.ops._math import quotient
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.comm import _group
from torch_npu.ops.comm import _worker_tables as workers

_LARGEST = 127.0
_HEAD = 2  # flag and layer, before the experts of the tokens
_MAX_TOKENS, _MAX_CHOICES, _MAX_EXPERTS, _MAX_SHARED = 512, 16, 1024, 4


@npu_op(
    "npu_attention_to_ffn(Tensor x, Tensor session_id, Tensor micro_batch_id, Tensor layer_id, "
    "Tensor expert_ids, Tensor expert_rank_table, str group, int world_size, "
    "int[] ffn_token_info_table_shape, int[] ffn_token_data_shape, int[] attn_token_info_table_shape, "
    "int moe_expert_num, *, Tensor? scales=None, Tensor? active_mask=None, int quant_mode=0, "
    "int sync_flag=0, int ffn_start_rank_id=0) -> ()",
    chips=("A3",),
    ge="AttentionToFFN",
    compiled="call",
)
def npu_attention_to_ffn(
    x,
    session_id,
    micro_batch_id,
    layer_id,
    expert_ids,
    expert_rank_table,
    group,
    world_size,
    ffn_token_info_table_shape,
    ffn_token_data_shape,
    moe_expert_num,
    scales,
    active_mask,
    quant_mode,
    sync_flag,
    ffn_start_rank_id,
):
    r"""Writes each token into the windows of the ranks that hold its K routed and its shared experts.

    The window of an FFN worker begins with a table of int32, (attention workers, micro batches, 2 + BS (K + shared)):
    flag, layer, and for each token and expert the number of the expert on that rank. From the next multiple of 512 bytes
    on it holds the tokens, (attention workers, micro batches, BS, K + shared, HS). Of E ranks that hold an expert,
    the one with number session_id mod E gets the token. The flag is set when everything is written; while it
    is still 1 from the call before, this one waits.

    Args:
        x: (X, BS, H), float16 or bfloat16; X = 1.
        session_id: (X,), int32: this attention worker's number.
        micro_batch_id: (X,), int32.
        layer_id: (X,), int32.
        expert_ids: (X, BS, K), int32: the routed experts of each token.
        expert_rank_table: (L, moe_expert_num + shared experts, M), int32: how many ranks hold the expert, then for each
            of them the rank and the expert's number there; L = 1, shared experts last.
        group: the name of the group; windows are exchanged by `_window_register_and_exchange` of its backend.
        world_size: its ranks, 2 to 768.
        ffn_token_info_table_shape: attention workers, micro batches, 2 + BS (K + shared).
        ffn_token_data_shape: attention workers, micro batches, BS, K + shared, HS.
        attn_token_info_table_shape: micro batches, BS, K + shared: the table in this rank's own window.
        moe_expert_num: routed experts, 1 to 1024.
        scales: (L, experts, H), float32: factors of the experts, with quant_mode 2 alone.
        active_mask: (X, BS), bool, the true ones first: tokens that are sent. Those that are not are marked as arrived
            in this rank's own window.
        quant_mode: 0, or 2: int8 with a factor a token, float32, after the H values (rounded up to 32 bytes).
        sync_flag: 0: every FFN worker's flag is set; 1: those that got a token.
        ffn_start_rank_id: the rank of the first FFN worker.

    Returns:
        Nothing.

    Constraints:
        BS up to 512, H 1024 to 8192, K up to 16, up to 4 shared experts.

    Differs from upstream: ranks are processes of one machine. In a group `softnpu%mirror_N` nothing is kept.
    """
    session, micro, layer = (int(t[0]) for t in (session_id, micro_batch_id, layer_id))
    rows = x.shape[1]
    tokens = rows if active_mask is None else int(active_mask[0].sum())
    per_token = expert_ids.shape[2] + expert_rank_table.shape[1] - moe_expert_num
    experts = _experts(expert_ids[0, :tokens], moe_expert_num, expert_rank_table.shape[1])
    places = expert_rank_table[layer][experts]
    at = (session % places[..., 0]) * 2 + 1
    rank_of = places.gather(-1, at.unsqueeze(-1).long())[..., 0]
    local = places.gather(-1, at.unsqueeze(-1).long() + 1)[..., 0]

    members = _group.find(group)
    dtype = torch.int8 if quant_mode else x.dtype
    count, batches = ffn_token_info_table_shape[:2]
    data_shape = (count, batches, rows, per_token, ffn_token_data_shape[4])
    sent = {}
    for rank in rank_of.unique().tolist():
        info, data = workers.tables(members, rank, ffn_token_info_table_shape, data_shape, dtype)
        info, data = info[session, micro], data[session, micro]
        workers.wait_until_taken(info[0], rank)
        token, choice = torch.nonzero(rank_of == rank, as_tuple=True)
        data[token, choice] = _payload(
            x[0, token], experts[token, choice], scales, quant_mode, data[token, choice]
        )
        info[_HEAD + token * per_token + choice] = local[token, choice]
        sent[rank] = info
    ranks = range(ffn_start_rank_id, ffn_start_rank_id + world_size - count)
    for rank in ranks if sync_flag == 0 else ():
        if rank not in sent:
            shapes = ffn_token_info_table_shape, data_shape
            sent[rank] = workers.tables(members, rank, *shapes, dtype)[0][session, micro]
    for info in sent.values():
        info[1] = layer
        info[0] = 1
    if tokens < rows:
        own = members.window(members.rank, batches * rows * per_token * 4).view(torch.int32)
        own.view(batches, rows, per_token)[micro, tokens:] = 1


def _experts(expert_ids, moe_expert_num, experts):
    """(tokens, K + shared): the routed experts, then the shared ones, whose numbers follow."""
    shared = torch.arange(moe_expert_num, experts).expand(expert_ids.shape[0], -1)
    return torch.cat([expert_ids.long(), shared], 1)


def _payload(x, experts, scales, quant_mode, before):
    """What is written for each row; `before` is what stands there, of the row's whole length."""
    out, width = before.clone(), x.shape[1]
    if quant_mode == 0:
        out[:, :width] = x
        return out
    value = x.float()
    if scales is not None:
        value = value * scales[0, experts]
    factor = quotient(_LARGEST, value.abs().amax(1, keepdim=True))
    whole = (value * factor).round().nan_to_num(0.0)
    out[:, :width] = whole.to(torch.int8)
    at = -(-width // 32) * 32
    out[:, at : at + 4] = (1 / factor).contiguous().view(torch.int8)
    return out


@npu_attention_to_ffn.check
def _(
    x,
    session_id,
    micro_batch_id,
    layer_id,
    expert_ids,
    expert_rank_table,
    group,
    world_size,
    ffn_token_info_table_shape,
    ffn_token_data_shape,
    attn_token_info_table_shape,
    moe_expert_num,
    scales,
    active_mask,
    quant_mode,
    sync_flag,
    ffn_start_rank_id,
):
    must.dtype("x", x, torch.float16, torch.bfloat16)
    must.shape("x", x, (1, None, None))
    rows, width = x.shape[1:]
    must.hold(0 < rows <= _MAX_TOKENS, "x", f"of 1 to {_MAX_TOKENS} tokens", rows)
    workers.check_width("x", width)
    workers.check_group(group, world_size)
    for name, tensor in (
        ("session_id", session_id),
        ("micro_batch_id", micro_batch_id),
        ("layer_id", layer_id),
    ):
        must.dtype(name, tensor, torch.int32)
        must.shape(name, tensor, (1,))
    _check_experts(expert_ids, expert_rank_table, rows, moe_expert_num)
    must.choice("quant_mode", quant_mode, (0, 2))
    must.choice("sync_flag", sync_flag, (0, 1))
    start = ffn_start_rank_id
    must.hold(0 <= start < world_size, "ffn_start_rank_id", f"in [0, {world_size})", start)
    if quant_mode == 0:
        must.hold(scales is None, "scales", "None with quant_mode 0", "a tensor")
    must.dtype("scales", scales, torch.float32)
    must.shape("scales", scales, (*expert_rank_table.shape[:2], width))
    must.dtype("active_mask", active_mask, torch.bool)
    must.shape("active_mask", active_mask, (1, rows))
    per_token = expert_ids.shape[2] + expert_rank_table.shape[1] - moe_expert_num
    shapes = ffn_token_info_table_shape, ffn_token_data_shape, attn_token_info_table_shape
    _check_tables(*shapes, world_size, rows, width, per_token, quant_mode)
    workers.check_values("session_id", session_id, ffn_token_data_shape[0], "attention workers")
    workers.check_values("micro_batch_id", micro_batch_id, ffn_token_data_shape[1], "micro batches")
    workers.check_values("layer_id", layer_id, expert_rank_table.shape[0], "L")
    workers.check_values("expert_ids", expert_ids, moe_expert_num, "moe_expert_num")


def _check_experts(expert_ids, expert_rank_table, rows, moe_expert_num):
    must.hold(
        0 < moe_expert_num <= _MAX_EXPERTS,
        "moe_expert_num",
        f"in [1, {_MAX_EXPERTS}]",
        moe_expert_num,
    )
    must.dtype("expert_ids", expert_ids, torch.int32)
    must.shape("expert_ids", expert_ids, (1, rows, None))
    most = min(_MAX_CHOICES, moe_expert_num)
    choices = expert_ids.shape[2]
    must.hold(0 < choices <= most, "expert_ids", f"of 1 to {most} experts a token", choices)
    must.dtype("expert_rank_table", expert_rank_table, torch.int32)
    must.shape("expert_rank_table", expert_rank_table, (1, None, None))
    experts, most = expert_rank_table.shape[1], moe_expert_num + _MAX_SHARED
    ok = moe_expert_num <= experts <= most and expert_rank_table.shape[2] >= 3
    expected = f"of shape (1, {moe_expert_num} to {most}, 3 or more)"
    must.hold(ok, "expert_rank_table", expected, tuple(expert_rank_table.shape))
    if must.has_data(expert_rank_table):
        low = int(expert_rank_table[..., 0].min())
        high = int(expert_rank_table[..., 0].max())
        room = (expert_rank_table.shape[2] - 1) // 2
        expected = f"a table whose first column is in [1, {room}]"
        must.hold(low >= 1 and high <= room, "expert_rank_table", expected, f"{low} to {high}")


def _check_tables(info, data, own, world_size, rows, width, per_token, quant_mode):
    must.hold(len(info) == 3, "ffn_token_info_table_shape", "of length 3", list(info))
    must.hold(len(data) == 5, "ffn_token_data_shape", "of length 5", list(data))
    must.hold(len(own) == 3, "attn_token_info_table_shape", "of length 3", list(own))
    ok = 0 < data[0] < world_size
    must.hold(ok, "ffn_token_data_shape", f"of 1 to {world_size - 1} attention workers", list(data))
    expected = f"that of ffn_token_data_shape ({list(data[:2])}), then 2 + BS (K + shared) or more"
    ok = list(info[:2]) == list(data[:2]) and info[2] >= _HEAD + rows * per_token
    must.hold(ok, "ffn_token_info_table_shape", expected, list(info))
    length = width + workers.SCALE_ROOM if quant_mode else width
    ok = list(data[2:4]) == [rows, per_token] and data[4] >= length
    expected = f"attention workers, micro batches, {rows}, {per_token}, {length} or more"
    must.hold(ok, "ffn_token_data_shape", expected, list(data))
    sizes = [data[1], rows, per_token]
    must.hold(list(own) == sizes, "attn_token_info_table_shape", f"{sizes}", list(own))


@npu_attention_to_ffn.meta
def _():
    return None


has_side_effect(npu_attention_to_ffn.overload)


def _inputs(make, shared, **more):
    """One attention worker and its arguments in a mirrored group of two."""
    x = make(1, 3, 1024, dtype=torch.bfloat16)
    one = [torch.zeros_like(make(1, dtype=torch.int32, low=0, high=2)) for _ in range(3)]
    ids = make(1, 3, 1, dtype=torch.int32, low=0, high=2)
    ids = torch.cat([ids, 1 - ids], 2)
    table = torch.zeros_like(make(1, 2 + shared, 3, dtype=torch.int32, low=0, high=2))
    table[..., 0] = 1
    per_token, length = 2 + shared, 1024 + more.pop("room", 0)
    shapes = [1, 1, 2 + 3 * per_token], [1, 1, 3, per_token, length], [1, 3, per_token]
    return (x, *one, ids, table, "softnpu%mirror_2", 2, *shapes, 2)


npu_attention_to_ffn.samples = [
    Sample(lambda make: _inputs(make, 0)),
    Sample(
        lambda make: _inputs(make, 1, room=128),
        lambda make: {
            "scales": make(1, 3, 1024, low=0.5, high=2),
            "active_mask": make(1, 3, dtype=torch.bool).sort(descending=True).values,
            "quant_mode": 2,
            "sync_flag": 1,
        },
    ),
]
