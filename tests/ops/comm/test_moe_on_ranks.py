"""Dispatch and combine on real ranks: every output against plain loops, and the round trip against the dense result."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import torch_npu
from tests.distributed import job
from tests.ops.support import assert_accurate
from torch_npu.distributed.distributed_c10d import backend_of


def tokens(rank: int, count: int, hidden: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(count, hidden, generator=generator).to(dtype)


def choices(rank: int, count: int, k: int, experts: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 + rank)
    return torch.stack(
        [torch.randperm(experts, generator=generator)[:k] for _ in range(count)]
    ).int()


def weights(rank: int, count: int, k: int) -> torch.Tensor:
    return torch.rand(count, k, generator=torch.Generator().manual_seed(2000 + rank))


def expert(x: torch.Tensor, number: int) -> torch.Tensor:
    """What expert `number` does to a token: something that differs from expert to expert."""
    return x * (number + 1) * 0.25 + number


def expected_rows(rank, ranks, count, k, hidden, experts, dtype, shared_ranks=0, mask=None):
    """By loops: the rows that arrive here, as (local expert, source, token, slot), in order."""
    local = experts // (ranks - shared_ranks)
    rows = []
    for mine in range(1 if rank < shared_ranks else local):
        for source in range(ranks):
            ids = choices(source, count, k, experts)
            for token in range(count):
                if mask is not None and not mask[token]:
                    continue
                if rank < shared_ranks:
                    if source % shared_ranks == rank:
                        rows.append((mine, source, token, k))
                    continue
                number = (rank - shared_ranks) * local + mine
                for slot in range(k):
                    if ids[token, slot] == number:
                        rows.append((mine, source, token, slot))
    return rows


def apply_experts(expand_x, nums, first):
    """Runs this rank's experts on what arrived; `nums` are counts a local expert."""
    out, at = torch.zeros_like(expand_x), 0
    for mine, count in enumerate(nums):
        out[at : at + count] = expert(expand_x[at : at + count].float(), first + mine).to(out.dtype)
        at += count
    return out


def second(group=None, experts_a_rank: int = 2) -> None:
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    name = backend_of(group).get_hccl_comm_name(rank)
    count, k, hidden, experts = 5, 3 if ranks > 2 else 2, 64, experts_a_rank * ranks
    for dtype in (torch.bfloat16, torch.float16):
        x, ids, scale = (
            tokens(rank, count, hidden, dtype),
            choices(rank, count, k, experts),
            weights(rank, count, k),
        )
        got = torch_npu.npu_moe_distribute_dispatch_v2(
            x.npu(),
            ids.npu(),
            name,
            ranks,
            rank,
            experts,
            expert_scales=scale.npu(),
            global_bs=count * ranks,
        )
        expand_x, _, info, nums, recv, _, expand_scales = got
        rows = expected_rows(rank, ranks, count, k, hidden, experts, dtype)
        capacity = count * ranks * min(experts_a_rank, k)
        assert expand_x.shape == (capacity, hidden) and info.shape == (capacity * 128,)
        for i, (_, source, token, slot) in enumerate(rows):
            assert torch.equal(expand_x[i].cpu(), tokens(source, count, hidden, dtype)[token])
            assert expand_scales[i].item() == weights(source, count, k)[token, slot].item()
        assert expand_x[len(rows) :].abs().sum() == 0
        per_expert = [sum(r[0] == e for r in rows) for e in range(experts_a_rank)]
        assert nums.tolist() == per_expert and nums.dtype == torch.int64
        cells = [
            sum(r[:2] == (e, s) for r in rows) for e in range(experts_a_rank) for s in range(ranks)
        ]
        assert recv[: len(cells)].tolist() == torch.tensor(cells).cumsum(0).tolist()
        sums = torch_npu.npu_moe_distribute_dispatch_v2(
            x.npu(), ids.npu(), name, ranks, rank, experts, expert_token_nums_type=0
        )[3]
        assert sums.tolist() == torch.tensor(per_expert).cumsum(0).tolist()
        y = torch_npu.npu_moe_distribute_combine_v2(
            apply_experts(expand_x, per_expert, rank * experts_a_rank), ids.npu(), info, recv, scale.npu(), name,
            ranks, rank, experts, expand_scales=expand_scales, global_bs=count * ranks,
        )  # fmt: skip
        compare(y, x, ids, scale, dtype)


def dense(x, ids, scale, keep=None, dtype=torch.float64):
    """One process, no routing: the weighted sum of the experts' results."""
    out = torch.zeros(x.shape, dtype=torch.float64)
    for token in range(x.shape[0]):
        for slot in range(ids.shape[1]):
            if keep is None or keep[token, slot]:
                result = expert(x[token].float(), int(ids[token, slot])).to(dtype).double()
                out[token] += scale[token, slot].double() * result
    return out


def compare(y, x, ids, scale, dtype, keep=None):
    want = dense(x, ids, scale, keep, dtype)
    assert_accurate(y, want, want.to(dtype))


def masks(rank: int) -> None:
    ranks, name = dist.get_world_size(), backend_of().get_hccl_comm_name(rank)
    count, k, hidden, experts = 4, 2, 32, 2 * ranks
    x, ids = tokens(rank, count, hidden, torch.float16), choices(rank, count, k, experts + 2)
    scale = weights(rank, count, k)
    mask = torch.rand(count, k, generator=torch.Generator().manual_seed(rank)) < 0.6
    time_spent = torch.zeros(ranks, dtype=torch.int64, device="npu")
    shared = {"zero_expert_num": 1, "copy_expert_num": 1, "performance_info": time_spent}
    expand_x, _, info, nums, recv, _, _ = torch_npu.npu_moe_distribute_dispatch_v2(
        x.npu(), ids.npu(), name, ranks, rank, experts, x_active_mask=mask.npu(), **shared
    )
    assert (time_spent > 0).all()
    y = torch_npu.npu_moe_distribute_combine_v2(
        apply_experts(expand_x, nums.tolist(), 2 * rank), ids.npu(), info, recv, scale.npu(), name, ranks, rank,
        experts, x_active_mask=mask.npu(), ori_x=x.npu(), **shared,
    )  # fmt: skip
    want = dense(x, ids, scale, mask & (ids < experts), torch.float16)
    copies = (scale * (mask & (ids == experts + 1))).sum(1, keepdim=True).double()
    want = want + copies * x.double()
    assert_accurate(y, want, want.half())
    flags = torch.arange(count) < 2  # whole tokens
    expand_x, _, info, nums, recv, _, _ = torch_npu.npu_moe_distribute_dispatch_v2(
        x.npu(), choices(rank, count, k, experts).npu(), name, ranks, rank, experts, x_active_mask=flags.npu()
    )  # fmt: skip
    assert (
        len(expected_rows(rank, ranks, count, k, hidden, experts, x.dtype, mask=flags))
        == nums.sum().item()
    )
    y = torch_npu.npu_moe_distribute_combine_v2(
        apply_experts(expand_x, nums.tolist(), 2 * rank), choices(rank, count, k, experts).npu(), info, recv,
        scale.npu(), name, ranks, rank, experts, x_active_mask=flags.npu(),
    )  # fmt: skip
    keep = flags.unsqueeze(1).expand(count, k)
    compare(y, x, choices(rank, count, k, experts), scale, torch.float16, keep)


def quantized(rank: int) -> None:
    ranks, name = dist.get_world_size(), backend_of().get_hccl_comm_name(rank)
    count, k, hidden, experts = 4, 2, 32, 2 * ranks
    x, ids = tokens(rank, count, hidden, torch.bfloat16), choices(rank, count, k, experts)
    factors = torch.rand(experts, hidden, generator=torch.Generator().manual_seed(7)) + 0.5
    for given in (None, factors):
        expand_x, scales, *_ = torch_npu.npu_moe_distribute_dispatch_v2(
            x.npu(), ids.npu(), name, ranks, rank, experts, quant_mode=2,
            scales=None if given is None else given.npu(),
        )  # fmt: skip
        assert expand_x.dtype == torch.int8 and scales.dtype == torch.float32
        for i, (mine, source, token, _) in enumerate(
            expected_rows(rank, ranks, count, k, hidden, experts, x.dtype)
        ):
            row = tokens(source, count, hidden, torch.bfloat16)[token].float()
            row = row if given is None else row * given[2 * rank + mine]
            largest = row.abs().max()
            assert abs(scales[i].item() - largest.item() / 127) < 1e-6
            off = expand_x[i].cpu().float() - (row * (127 / largest)).round()
            assert off.abs().max() <= 1 and (off != 0).sum() <= 1
    packed = torch.randint(
        -(2**31), 2**31 - 1, (count, hidden), generator=torch.Generator().manual_seed(rank)
    ).int()
    expand_x, scales, *_ = torch_npu.npu_moe_distribute_dispatch_v2(
        packed.npu(), ids.npu(), name, ranks, rank, experts, scales=torch.arange(4.0).npu() + rank,
        comm_alg="fullmesh",
    )  # fmt: skip
    for i, (_, source, token, _) in enumerate(
        expected_rows(rank, ranks, count, k, hidden, experts, x.dtype)
    ):
        assert scales[i].item() == token + source
        if source == rank:
            assert torch.equal(expand_x[i].cpu(), packed[token])


def normalized(rank: int) -> None:
    ranks, name = dist.get_world_size(), backend_of().get_hccl_comm_name(rank)
    count, k, hidden, experts = 4, 2, 32, 2 * ranks
    x, ids = tokens(rank, count, hidden, torch.bfloat16), choices(rank, count, k, experts)
    scale, residual = (
        weights(rank, count, k),
        tokens(rank + 50, count, hidden, torch.bfloat16).unsqueeze(1),
    )
    gamma, extra = (
        tokens(99, 1, hidden, torch.bfloat16)[0],
        tokens(rank + 70, count, hidden, torch.bfloat16),
    )
    expand_x, _, info, nums, recv, _, _ = torch_npu.npu_moe_distribute_dispatch_v2(
        x.npu(), ids.npu(), name, ranks, rank, experts
    )
    y, rstd, added = torch_npu.npu_moe_distribute_combine_add_rms_norm(
        apply_experts(expand_x, nums.tolist(), 2 * rank), ids.npu(), info, recv, scale.npu(), residual.npu(),
        gamma.npu(), name, ranks, rank, experts, shared_expert_x=extra.npu(), norm_eps=1e-5,
    )  # fmt: skip
    want = (dense(x, ids, scale, None, torch.bfloat16) + extra.double()).unsqueeze(
        1
    ) + residual.double()
    inverse = 1 / (want.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    assert_accurate(added, want, want.bfloat16())
    assert_accurate(rstd, inverse, inverse.float())
    normed = want * inverse * gamma.double()
    stepwise = (want * inverse).bfloat16().float() * gamma.float()  # rounded before gamma
    assert_accurate(y, normed, stepwise.bfloat16())
    assert (y.cpu() == stepwise.bfloat16()).float().mean() > 0.97  # the sums' order may show


def first(rank: int, hidden: int = 64, shared_ranks: int = 0, quant: int = 0) -> None:
    ranks, name = dist.get_world_size(), backend_of().get_hccl_comm_name(rank)
    count, k = 3, 4
    experts = 2 * (ranks - shared_ranks)
    x, ids = tokens(rank, count, hidden, torch.bfloat16), choices(rank, count, k, experts)
    scale = weights(rank, count, k)
    options = {"shared_expert_rank_num": shared_ranks}
    expand_x, _, idx, nums, recv, _, _ = torch_npu.npu_moe_distribute_dispatch(
        x.npu(), ids.npu(), name, ranks, rank, experts, **options
    )
    rows = expected_rows(rank, ranks, count, k, hidden, experts, x.dtype, shared_ranks)
    for i, (_, source, token, _) in enumerate(rows):
        assert torch.equal(expand_x[i].cpu(), tokens(source, count, hidden, x.dtype)[token])
    assert idx.shape == (count * k,) and nums.sum().item() == len(rows)
    is_shared = rank < shared_ranks
    number = 90 if is_shared else 2 * (rank - shared_ranks)
    y = torch_npu.npu_moe_distribute_combine(
        apply_experts(expand_x, nums.tolist(), number), ids.npu(), idx, recv, scale.npu(), name, ranks, rank,
        experts, comm_quant_mode=quant, **options,
    )  # fmt: skip
    want = dense(x, ids, scale, None, x.dtype)
    if shared_ranks:
        want = want + expert(x.float(), 90).to(x.dtype).double()
    if quant:
        assert (y.cpu().double() - want).abs().max() < 0.01 * want.abs().max()
    else:
        assert_accurate(y, want, want.to(x.dtype))


def shared_experts(rank: int) -> None:
    """Atlas A3: experts that every token goes to, on the first ranks; constant experts; quantized results."""
    ranks, name = dist.get_world_size(), backend_of().get_hccl_comm_name(rank)
    count, k, hidden, experts = 3, 2, 1024, 4
    x, ids = tokens(rank, count, hidden, torch.bfloat16), choices(rank, count, k, experts + 1)
    scale = weights(rank, count, k)
    constants = {
        f"const_expert_{n}": tokens(60 + i, 1, hidden, torch.bfloat16).npu()
        for i, n in enumerate(("alpha_1", "alpha_2", "v"))
    }
    options = {"shared_expert_num": 1, "shared_expert_rank_num": 2, "const_expert_num": 1}
    expand_x, _, info, nums, recv, _, _ = torch_npu.npu_moe_distribute_dispatch_v2(
        x.npu(), ids.npu(), name, ranks, rank, experts, **options
    )
    number = 90 if rank < 2 else 2 * (rank - 2)
    for quant in (0, 2):
        y = torch_npu.npu_moe_distribute_combine_v2(
            apply_experts(expand_x, nums.tolist(), number), ids.npu(), info, recv, scale.npu(), name, ranks,
            rank, experts, ori_x=x.npu(), comm_quant_mode=quant, **constants, **options,
        )  # fmt: skip
        want = dense(x, ids, scale, ids < experts, x.dtype)
        want = want + expert(x.float(), 90).to(x.dtype).double()
        a, b, v = (t.cpu().double() for t in constants.values())
        share = (scale * (ids == experts)).sum(1, keepdim=True).double()
        want = want + share * (a * x.double() + b * v)
        if quant:
            assert (y.cpu().double() - want).abs().max() < 0.02 * want.abs().max()
        else:
            assert_accurate(y, want, want.to(x.dtype))


def shared_results(rank: int) -> None:
    """Atlas A3: what a shared expert made elsewhere is added where no rank has shared experts."""
    ranks, name = dist.get_world_size(), backend_of().get_hccl_comm_name(rank)
    x, extra = (tokens(rank + n, 3, 1024, torch.bfloat16) for n in (0, 70))
    ids, scale = choices(rank, 3, 2, ranks), weights(rank, 3, 2)
    expand_x, _, info, nums, recv, _, scales = torch_npu.npu_moe_distribute_dispatch_v2(
        x.npu(), ids.npu(), name, ranks, rank, ranks
    )
    y = torch_npu.npu_moe_distribute_combine_v2(
        apply_experts(expand_x, nums.tolist(), rank), ids.npu(), info, recv, scale.npu(), name, ranks, rank,
        ranks, shared_expert_x=extra.npu(), expand_scales=scales,
    )  # fmt: skip
    want = dense(x, ids, scale, ids >= 0, x.dtype) + extra.double()
    assert_accurate(y, want, want.to(x.dtype))


def compiled(rank: int) -> None:
    ranks, name = dist.get_world_size(), backend_of().get_hccl_comm_name(rank)
    x, ids = tokens(rank, 4, 32, torch.float16).npu(), choices(rank, 4, 2, 2 * ranks).npu()
    scale = weights(rank, 4, 2).npu()

    def layer(x, ids, scale):
        out = torch_npu.npu_moe_distribute_dispatch_v2(x, ids, name, ranks, rank, 2 * ranks)
        return torch_npu.npu_moe_distribute_combine_v2(
            out[0] * 2, ids, out[2], out[4], scale, name, ranks, rank, 2 * ranks
        )

    have = torch.compile(layer, backend="aot_eager", fullgraph=True)(x, ids, scale)
    assert torch.equal(have.cpu(), layer(x, ids, scale).cpu())


def grouped(group=None) -> None:
    """npu_alltoallv_gmm and back by npu_gmm_alltoallv: the tokens through two matrices of their experts."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    name = backend_of(group).get_hccl_comm_name(rank)
    experts, width = 2, 16
    table = torch.randint(0, 4, (ranks, ranks, experts), generator=torch.Generator().manual_seed(5))
    send, receive = table[rank].reshape(-1).tolist(), table[:, rank].reshape(-1).tolist()
    x = tokens(rank, sum(send), width, torch.float16)
    up = [
        tokens(10 + r, experts * width, 8, torch.float16).view(experts, width, 8)
        for r in range(ranks)
    ]
    down = [
        tokens(30 + r, experts * 8, width, torch.float16).view(experts, 8, width)
        for r in range(ranks)
    ]
    y, beside, permuted = torch_npu.npu_alltoallv_gmm(
        x.npu(), up[rank].npu(), name, ranks, send, receive, mm_x=x.npu(), mm_weight=up[0][0].npu(),
        permute_out_flag=True,
    )  # fmt: skip
    want = x.double() @ up[0][0].double()
    assert_accurate(beside, want, want.half())
    at = 0
    for e in range(experts):  # rows of expert e, by the rank they came from
        for source in range(ranks):
            cells = table[source].reshape(-1)
            skip, take = cells[: rank * experts + e].sum(), cells[rank * experts + e]
            part = tokens(source, int(cells.sum()), width, torch.float16)[skip : skip + take]
            assert torch.equal(permuted[at : at + take].cpu(), part)
            want = part.double() @ up[rank][e].double()
            assert_accurate(y[at : at + take], want, want.half())
            at += take
    back, nothing = torch_npu.npu_gmm_alltoallv(
        y,
        down[rank].transpose(1, 2).contiguous().npu(),
        name,
        ranks,
        receive,
        send,
        trans_gmm_weight=True,
    )
    assert nothing is None and back.shape == x.shape
    at = 0
    for r in range(ranks):
        for e in range(experts):
            part = x[at : at + table[rank, r, e]]
            want = (part.double() @ up[r][e].double()).half().double() @ down[r][e].double()
            assert_accurate(back[at : at + table[rank, r, e]], want, want.half(), slack=2e-2)
            at += int(table[rank, r, e])


def on_two(rank: int) -> None:
    second()
    for part in (masks, quantized, normalized, compiled):
        part(rank)


def on_sixteen(rank: int) -> None:
    """All ranks, and blocks of eight, four and two of them."""
    first(rank)
    first(rank, quant=2)
    for size in (16, 8, 4, 2):
        group, _ = dist.new_subgroups(size)
        second(group, 1 if size > 4 else 2)
        if size == 8:
            grouped(group)


def on_a3(rank: int) -> None:
    shared_experts(rank)
    shared_results(rank)


def test_two_ranks():
    job.run(on_two, 2)


@pytest.mark.slow
def test_sixteen_ranks():
    job.run(on_sixteen, 16, timeout=300)


def test_shared_experts():
    job.run(on_a3, 4, env={"SOFTNPU_SOC": "Ascend910_9391"})
