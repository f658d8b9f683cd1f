"""npu_moe_distribute_dispatch_setup: lays out the tokens that go to other ranks; teardown receives them."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _formats, _mx
from torch_npu.ops.comm import _moe
from torch_npu.ops.comm import _moe_halves as halves


@npu_op(
    "npu_moe_distribute_dispatch_setup(Tensor x, Tensor expert_ids, str group_ep, int ep_world_size, "
    "int ep_rank_id, int moe_expert_num, *, Tensor? scales=None, Tensor? x_active_mask=None, "
    "int expert_shard_type=0, int shared_expert_num=1, int shared_expert_rank_num=0, "
    'int quant_mode=0, int global_bs=0, int comm_type=0, str comm_alg="", int? y_dtype=None) '
    "-> (Tensor, Tensor, Tensor)",
    chips=("A5",),
)
def npu_moe_distribute_dispatch_setup(
    x,
    expert_ids,
    ep_world_size,
    ep_rank_id,
    moe_expert_num,
    x_active_mask,
    shared_expert_num,
    shared_expert_rank_num,
    quant_mode,
    global_bs,
    y_dtype,
):
    r"""Lays out each token once for each of its K experts, in the order of the experts, quantized if asked for.

    $$ y_i = m(x_{\lfloor p_i / K \rfloor}), \qquad p = \mathrm{argsort}(\mathrm{expert\_ids}) \text{ (stable)} $$

    A message m is the token, or in `quant_mode` 4 its float8 values and, behind the next multiple of 256 values, the
    scales of 32 values each (MX: powers of two). It is filled up to a multiple of 512 bytes.

    Args:
        x: (BS, H), float16 or bfloat16.
        expert_ids: (BS, K), int32, different experts in each row.
        group_ep: the name of the group of expert parallelism.
        ep_world_size: its ranks, 2 to 384.
        ep_rank_id: this rank's number in it.
        moe_expert_num: routed experts, a multiple of ep_world_size, up to 512.
        scales: for modes of quantization that are not released; None.
        x_active_mask: bool, (BS,) with the true ones first: tokens that take part.
        expert_shard_type: 0.
        shared_expert_num: 0 to 4; y has rows for them, which nothing fills as long as there are no ranks of theirs.
        shared_expert_rank_num: 0.
        quant_mode: 0, or 4: MX quantization to `y_dtype`.
        global_bs: 0, or the largest BS of a rank times ep_world_size.
        comm_type: 2 (URMA).
        comm_alg: "".
        y_dtype: float8_e4m3fn or float8_e5m2 in quant_mode 4; else None or that of x.

    Returns:
        y (BS (K + shared), message), expand_idx (BS * K,), int32: how many earlier choices name the same expert;
        comm_cmd_info, int32: the commands for npu_moe_distribute_dispatch_teardown.

    Constraints:
        BS up to 512, H from 1024 to 8192, K up to 16. Call npu_moe_distribute_dispatch_teardown next.

    Differs from upstream: rows travel when the teardown is called. Bytes of y that carry nothing are zero, and the
    commands are of our own form.
    """
    where = _moe.layout(
        expert_ids, ep_world_size, ep_rank_id, moe_expert_num, shared_expert_num,
        shared_expert_rank_num, global_bs,
    )  # fmt: skip
    rows = where.tokens * (where.slots + shared_expert_num)
    tokens = halves.active(x_active_mask, expert_ids)
    dtype = halves.message_dtype(x, y_dtype)
    return halves.lay_out(
        x, expert_ids, tokens, moe_expert_num, where.local_experts, rows, dtype, quant_mode
    )


@npu_moe_distribute_dispatch_setup.check
def _(
    x,
    expert_ids,
    group_ep,
    ep_world_size,
    ep_rank_id,
    moe_expert_num,
    scales,
    x_active_mask,
    expert_shard_type,
    shared_expert_num,
    shared_expert_rank_num,
    quant_mode,
    global_bs,
    comm_type,
    comm_alg,
    y_dtype,
):
    halves.check(
        expert_ids, group_ep, ep_world_size, ep_rank_id, moe_expert_num, expert_shard_type,
        shared_expert_num, shared_expert_rank_num, global_bs, comm_type, comm_alg,
    )  # fmt: skip
    halves.check_tokens(x, expert_ids, quant_mode)
    halves.check_mask(x_active_mask, expert_ids)
    must.unset("scales", scales)
    if quant_mode == halves.MX:
        must.present("y_dtype", y_dtype, "when quant_mode is 4")
        _formats.check("y_dtype", y_dtype, *_mx.FLOAT8)
    elif y_dtype is not None:
        _formats.check("y_dtype", y_dtype, str(x.dtype).removeprefix("torch."))


@npu_moe_distribute_dispatch_setup.meta
def _(x, expert_ids, moe_expert_num, shared_expert_num, quant_mode, y_dtype):
    tokens, slots = expert_ids.shape
    rows = tokens * (slots + shared_expert_num)
    size = halves.message_size(x.shape[1], quant_mode)
    return (
        x.new_empty((rows, size), dtype=halves.message_dtype(x, y_dtype)),
        x.new_empty(tokens * slots, dtype=torch.int32),
        x.new_empty((rows + moe_expert_num) * halves.WORDS, dtype=torch.int32),
    )


npu_moe_distribute_dispatch_setup.samples = [
    Sample(lambda make: (make(3, 1024, dtype=torch.bfloat16), ids(make), "softnpu%mirror_2", 2, 0, 8),
           {"comm_type": 2, "shared_expert_num": 0}),
    Sample(lambda make: (make(3, 1040, dtype=torch.float16), ids(make), "softnpu%mirror_4", 4, 0, 8),
           lambda make: {"comm_type": 2, "quant_mode": 4, "y_dtype": 292, "global_bs": 16,
                         "x_active_mask": make(3, dtype=torch.bool).sort(descending=True).values}),
]  # fmt: skip


def ids(make):
    """Three tokens and their two experts, the same for every rank of four."""
    first = make(3, 1, dtype=torch.int32, low=0, high=4)
    return torch.cat([first, first + 4], 1)
