"""The documented constraints of dispatch and combine."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu.ops import _check as must
from torch_npu.ops.comm import _group
from torch_npu.ops.comm._moe import INFO, Layout

HALF = (torch.float16, torch.bfloat16)
_INT32_MAX = 2**31 - 1
_WIDEST_PACKED = 5120  # H of tokens that are packed in int32
_NODE_A2 = 8  # ranks of a node
_FIRST_A3 = (8, 16, 32, 64, 128, 144, 256, 288)
_ALGORITHMS = {
    "A2": ("", "fullmesh", "hierarchy"),
    "A3": ("", "fullmesh_v1", "fullmesh_v2", "hierarchy"),
    "A5": ("", "fullmesh_v1", "fullmesh_v2", "ccu"),
}


def is_a2() -> bool:
    return chips.current().family == "A2"


def check_domain(
    expert_ids, group_ep, ep_world_size, ep_rank_id, moe_expert_num, group_tp, tp_world_size, tp_rank_id,
    expert_shard_type, shared_expert_num, shared_expert_rank_num, global_bs, version, comm_alg="",
):  # fmt: skip
    """Groups, ranks and experts; `version` 1 and 2 differ in what they allow."""
    must.dtype("expert_ids", expert_ids, torch.int32)
    must.ndim("expert_ids", expert_ids, 2)
    _check_ranks(ep_world_size, version, comm_alg)
    _group.check_name("group_ep", group_ep, "ep_world_size", ep_world_size)
    must.hold(
        0 <= ep_rank_id < ep_world_size, "ep_rank_id", f"in [0, ep_world_size = {ep_world_size})", ep_rank_id
    )  # fmt: skip
    own = _group.find(group_ep).rank
    must.hold(
        ep_rank_id == own, "ep_rank_id", f"this rank's number in the group ({own})", ep_rank_id
    )
    must.hold(isinstance(group_tp, str), "group_tp", "a name", group_tp)
    must.choice("tp_world_size", tp_world_size, (0, 1))
    must.unset("tp_rank_id", tp_rank_id, 0)
    must.unset("expert_shard_type", expert_shard_type, 0)
    _check_shared(ep_world_size, shared_expert_num, shared_expert_rank_num, version)
    most = 512 if version == 1 or comm_alg == "hierarchy" else 1024
    must.hold(1 <= moe_expert_num <= most, "moe_expert_num", f"in [1, {most}]", moe_expert_num)
    homes = ep_world_size - shared_expert_rank_num
    must.hold(
        moe_expert_num % homes == 0,
        "moe_expert_num",
        f"a multiple of ep_world_size - shared_expert_rank_num ({homes})",
        moe_expert_num,
    )
    local = moe_expert_num // homes
    if is_a2() and version == 1:
        must.hold(local <= 24, "moe_expert_num", "at most 24 experts a rank", local)
    if not is_a2() and version == 2:
        must.hold(
            local * ep_world_size <= 2048,
            "moe_expert_num",
            "at most 2048 / ep_world_size a rank",
            local,
        )
    tokens = expert_ids.shape[0]
    least = tokens * ep_world_size
    ok = global_bs == 0 or (global_bs >= least and global_bs % ep_world_size == 0)
    must.hold(
        ok,
        "global_bs",
        f"0, or the largest BS of a rank times ep_world_size (at least {least})",
        global_bs,
    )


def _check_ranks(ep_world_size, version, comm_alg):
    if version == 1:
        if is_a2():
            fits = 0 < ep_world_size <= 256 and ep_world_size % _NODE_A2 == 0
            must.hold(fits, "ep_world_size", f"a multiple of {_NODE_A2} up to 256", ep_world_size)
        elif chips.current().family == "A5":
            must.choice("ep_world_size", ep_world_size, (2, 4, *_FIRST_A3))
        else:
            must.choice("ep_world_size", ep_world_size, _FIRST_A3)
        return
    must.choice("comm_alg", comm_alg, _ALGORITHMS.get(chips.current().family, _ALGORITHMS["A3"]))
    if is_a2():
        most = 64 if comm_alg == "hierarchy" else 384
        nodes = ep_world_size <= _NODE_A2 or ep_world_size % _NODE_A2 == 0
        expected = f"1 to {_NODE_A2}, or a multiple of it up to {most}"
        must.hold(nodes and 1 <= ep_world_size <= most, "ep_world_size", expected, ep_world_size)
    elif comm_alg == "hierarchy":
        ok = 16 <= ep_world_size <= 256 and ep_world_size % 16 == 0
        must.hold(ok, "ep_world_size", "a multiple of 16 up to 256 with 'hierarchy'", ep_world_size)
    else:
        most = 1024 if chips.current().family == "A5" else 768
        fits = 2 <= ep_world_size <= most
        must.hold(fits, "ep_world_size", f"in [2, {most}]", ep_world_size)


def _check_shared(ep_world_size, number, ranks, version):
    if is_a2():
        must.choice("shared_expert_num", number, (0, 1))
        must.unset("shared_expert_rank_num", ranks, 0)
        return
    must.choice("shared_expert_num", number, (1,) if version == 1 else range(5))
    must.hold(
        0 <= ranks < ep_world_size, "shared_expert_rank_num", f"in [0, {ep_world_size})", ranks
    )
    if ranks == 0:
        must.choice("shared_expert_num", number, (0, 1))
    elif version == 1:
        ok = ep_world_size % ranks == 0
        must.hold(
            ok, "shared_expert_rank_num", f"a divisor of ep_world_size ({ep_world_size})", ranks
        )
    else:
        ok = number > 0 and ranks % number == 0
        must.hold(
            ok, "shared_expert_rank_num", f"a multiple of shared_expert_num ({number})", ranks
        )


def check_sizes(name, hidden, expert_ids, version, experts, comm_alg="", combine=False):
    """H, BS and K; only dispatch has limits of its own for fullmesh_v2."""
    if combine and comm_alg != "hierarchy":
        comm_alg = ""
    tokens, k = expert_ids.shape
    layered = comm_alg == "hierarchy"
    if is_a2() or (version == 2 and layered):
        widest = 10240 if is_a2() and version == 2 else 7168
        must.hold(
            0 < hidden <= widest and hidden % 32 == 0,
            name,
            f"of H a multiple of 32 up to {widest}",
            hidden,
        )
        most = 512 if is_a2() and layered else 256
    elif version == 1:
        must.hold(hidden == 7168, name, "of H = 7168", hidden)
        most = 512
    else:
        must.hold(1024 <= hidden <= 8192, name, "of H in [1024, 8192]", hidden)
        full_mesh_of_950 = chips.current().family == "A5" and comm_alg == "fullmesh_v2"
        most = 256 if comm_alg == "fullmesh_v2" and not full_mesh_of_950 else 512
    must.hold(0 < tokens <= most, "expert_ids", f"of BS in (0, {most}]", tokens)
    widest_k = 8 if version == 1 and not is_a2() else 12 if comm_alg == "fullmesh_v2" else 16
    must.hold(
        0 < k <= min(widest_k, experts), "expert_ids", f"of K in (0, {min(widest_k, experts)}]", k
    )


def check_ids(expert_ids, experts):
    """Values: in range, and no expert twice for a token."""
    if not must.has_data(expert_ids) or expert_ids.numel() == 0:
        return
    low, high = (int(v) for v in torch.aminmax(expert_ids))
    must.hold(low >= 0 and high < experts, "expert_ids", f"values in [0, {experts})", (low, high))
    ordered = expert_ids.sort(1).values
    twice = bool((ordered[:, 1:] == ordered[:, :-1]).any())
    must.hold(
        not twice, "expert_ids", "different experts in each row", "a row that names one twice"
    )


def check_mask(x_active_mask, expert_ids, comm_alg=""):
    """A token mask, true ones first, or a mask of each token's experts."""
    if x_active_mask is None:
        return
    if comm_alg == "hierarchy":
        if is_a2():
            must.unset("x_active_mask", x_active_mask)
        must.ndim("x_active_mask", x_active_mask, 1)
    must.dtype("x_active_mask", x_active_mask, torch.bool)
    must.ndim("x_active_mask", x_active_mask, 1, 2)
    must.shape("x_active_mask", x_active_mask, tuple(expert_ids.shape[: x_active_mask.dim()]))
    if x_active_mask.dim() == 1 and must.has_data(x_active_mask):
        mask = x_active_mask.int()
        ok = bool((mask[1:] <= mask[:-1]).all())
        must.hold(ok, "x_active_mask", "true values before false ones", mask.tolist())


def check_special(zero, copy, const, moe_expert_num, comm_alg=""):
    """The numbers of experts that need no other rank."""
    for name, value in (
        ("zero_expert_num", zero),
        ("copy_expert_num", copy),
        ("const_expert_num", const),
    ):
        must.hold(0 <= value < _INT32_MAX, name, f"in [0, {_INT32_MAX})", value)
        if comm_alg == "hierarchy":
            must.unset(name, value, 0)
    if is_a2():
        must.unset("const_expert_num", const, 0)
    total = moe_expert_num + zero + copy + const
    must.hold(
        total < _INT32_MAX, "moe_expert_num", f"below {_INT32_MAX} with the special experts", total
    )


def check_performance(performance_info, ep_world_size, comm_alg=""):
    if comm_alg == "hierarchy" and not is_a2():
        must.unset("performance_info", performance_info)
    must.dtype("performance_info", performance_info, torch.int64)
    must.shape("performance_info", performance_info, (ep_world_size,))


def check_dispatch(
    x, expert_ids, scales, expert_scales, quant_mode, where: Layout, comm_alg="", version=2
):
    """Tokens, scales and the mode of quantization."""
    integers = (torch.int32,) if version == 2 and is_a2() else ()
    must.dtype("x", x, *HALF, *integers)
    must.ndim("x", x, 2)
    must.shape("x", x, (expert_ids.shape[0], None))
    must.choice("quant_mode", quant_mode, (0,) if x.dtype == torch.int32 else (0, 2))
    must.dtype("scales", scales, torch.float32)
    if x.dtype == torch.int32:
        must.hold(comm_alg != "hierarchy", "comm_alg", "'fullmesh' when x is int32", comm_alg)
        must.hold(x.shape[1] <= _WIDEST_PACKED, "x", f"of H up to {_WIDEST_PACKED}", x.shape[1])
        must.present("scales", scales, "when x is int32")
        must.shape("scales", scales, (x.shape[0],))
    elif quant_mode == 0:
        must.unset("scales", scales)
    else:
        shared = where.shared_experts if where.shared_ranks else 0
        must.shape("scales", scales, (shared + where.experts, x.shape[1]))
    must.dtype("expert_scales", expert_scales, torch.float32)
    must.shape("expert_scales", expert_scales, tuple(expert_ids.shape))


def check_combine(
    expand_x, expert_ids, ep_send_counts, expert_scales, expand_scales, where: Layout
):
    """What comes back from the experts."""
    must.dtype("expand_x", expand_x, *HALF)
    must.ndim("expand_x", expand_x, 2)
    must.dtype("ep_send_counts", ep_send_counts, torch.int32)
    must.ndim("ep_send_counts", ep_send_counts, 1)
    least = where.ranks * where.local_experts
    must.hold(
        ep_send_counts.shape[0] >= least,
        "ep_send_counts",
        f"of at least {least} values, as dispatch returns them",
        ep_send_counts.shape[0],
    )
    must.hold(
        expand_x.shape[0] >= where.capacity, "expand_x", f"of A = {where.capacity} rows", expand_x.shape[0]
    )  # fmt: skip
    must.dtype("expert_scales", expert_scales, torch.float32)
    must.shape("expert_scales", expert_scales, tuple(expert_ids.shape))
    must.dtype("expand_scales", expand_scales, torch.float32)


def check_info(name, info, expand_x):
    """The assist info of dispatch_v2."""
    must.dtype(name, info, torch.int32)
    must.ndim(name, info, 1)
    least = expand_x.shape[0] * INFO
    must.hold(info.shape[0] >= least, name, f"of A * {INFO} = {least} values", info.shape[0])


def check_special_operands(expand_x, expert_ids, ori_x, alpha_1, alpha_2, v, copy, const):
    """What copy and constant experts compute with."""
    hidden = expand_x.shape[1]
    if copy or const:
        must.present("ori_x", ori_x, "when copy_expert_num or const_expert_num is not 0")
    must.same_dtype("ori_x", ori_x, "expand_x", expand_x)
    must.shape("ori_x", ori_x, (expert_ids.shape[0], hidden))
    for name, value in (
        ("const_expert_alpha_1", alpha_1),
        ("const_expert_alpha_2", alpha_2),
        ("const_expert_v", v),
    ):
        if const:
            must.present(name, value, "when const_expert_num is not 0")
            must.same_dtype(name, value, "expand_x", expand_x)
            must.shape(name, value, (const, hidden))
        elif is_a2():
            must.unset(name, value)
