"""npu_alltoallv_quant_gmm and npu_quant_gmm_alltoallv in a mirrored group and on ranks, against fp64."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import torch_npu
from tests.distributed import job
from tests.ops.support import assert_accurate, make
from torch_npu.distributed.distributed_c10d import backend_of
from torch_npu.ops._shared import _formats

NAME = "softnpu%mirror_2"
SIDES = [f"{k}_{s}" for k in ("gmm", "mm") for s in ("x", "weight")]


def micro(x, weight, first, second):
    """Values of both sides with their powers of two."""
    left = torch.pow(2.0, first.double() - 127).flatten(-2).repeat_interleave(32, -1)
    right = torch.pow(2.0, second.double() - 127).transpose(-1, -2).flatten(-3, -2)
    right = right.repeat_interleave(32, -2)
    depth = x.shape[-1]
    return x.float().double() * left[..., :depth], weight.float().double() * right[..., :depth, :]


def floats(rank, *shape, kind=torch.float8_e4m3fn):
    return (torch.rand(shape, generator=torch.Generator().manual_seed(rank)) - 0.5).to(kind)


def powers(rank, *shape):
    generator = torch.Generator().manual_seed(rank)
    return torch.randint(124, 130, shape, generator=generator).to(torch.uint8)


def options(mode=6, **more):
    found = {f"{s}_quant_mode": mode for s in SIDES}
    if mode == 6:
        found |= {f"{s}_scale_dtype": torch_npu.float8_e8m0fnu for s in SIDES}
    else:
        found |= {f"{s}_dtype": torch_npu.hifloat8 for s in SIDES}
    return {**found, "mm_y_dtype": 15, **more}


def on_ranks(rank: int) -> None:
    ranks = dist.get_world_size()
    name = backend_of().get_hccl_comm_name(rank)
    # counts[s][r][e]: tokens from rank s for expert e of rank r
    counts = [[[1 + (s + r + e) % 3 for e in range(2)] for r in range(ranks)] for s in range(ranks)]
    sent = [[c for r in counts[s] for c in r] for s in range(ranks)]
    received = [[c for s in range(ranks) for c in counts[s][r]] for r in range(ranks)]
    xs = [floats(s, sum(sent[s]), 70) for s in range(ranks)]
    scales = [powers(s, sum(sent[s]), 2, 2) for s in range(ranks)]
    weight, factor = floats(9 + rank, 2, 70, 5), powers(9 + rank, 2, 2, 5, 2)
    y, nothing, p = torch_npu.npu_alltoallv_quant_gmm(
        xs[rank].npu(),
        weight.npu(),
        scales[rank].npu(),
        factor.npu(),
        name,
        ranks,
        sent[rank],
        received[rank],
        15,
        permute_out_flag=True,
        **options(),
    )
    assert nothing is None
    rows, order, parts = [], [], []
    for e in range(2):
        chosen, chosen_scales = [], []
        for s in range(ranks):
            start = sum(sent[s][: 2 * rank + e])
            end = start + counts[s][rank][e]
            chosen.append(xs[s][start:end])
            chosen_scales.append(scales[s][start:end])
        order.append(torch.cat([c.view(torch.uint8) for c in chosen]))
        x = torch.cat([c.float() for c in chosen])
        a, b = micro(x, weight[e], torch.cat(chosen_scales), factor[e])
        rows.append(a @ b)
        parts.append(torch.cat(chosen_scales))
    assert torch.equal(p.cpu().view(torch.uint8), torch.cat(order))
    want = torch.cat(rows)
    assert_accurate(y, want, want.bfloat16())
    back, _ = torch_npu.npu_quant_gmm_alltoallv(
        p,
        weight.npu(),
        torch.cat(parts).npu(),
        factor.npu(),
        name,
        ranks,
        received[rank],
        sent[rank],
        15,
        **options(),
    )
    at, expected = 0, []
    for r in range(ranks):
        for e in range(2):
            end = at + counts[rank][r][e]
            w, f = floats(9 + r, 2, 70, 5), powers(9 + r, 2, 2, 5, 2)
            a, b = micro(xs[rank][at:end], w[e], scales[rank][at:end], f[e])
            expected.append(a @ b)
            at = end
    want = torch.cat(expected)
    assert_accurate(back, want, want.bfloat16())


def test_on_ranks():
    job.run(on_ranks, 2)


def hifloat(*shape):
    return make(*shape, dtype=torch.uint8, low=1, high=60)


def test_one_scale_a_matrix():
    x, w = hifloat(8, 6), hifloat(2, 6, 4)
    s, t = make(1, low=0.5), make(1, low=0.5, seed=3)
    mm_x, mm_w = hifloat(4, 6), hifloat(6, 5)
    more = {"mm_x": mm_x, "mm_weight": mm_w, "mm_x_scale": s, "mm_weight_scale": t}
    given = (x, w, s, t, NAME, 2, [2] * 4, [2] * 4, 15)
    y, shared, p = torch_npu.npu_alltoallv_quant_gmm(*given, **more, **options(1))
    back, again = torch_npu.npu_quant_gmm_alltoallv(*given, **more, **options(1))
    assert p is None and torch.equal(shared.cpu(), again.cpu())

    def value(t):
        return _formats.decode(t.cpu(), "hifloat8").double()

    scale = s.item() * t.item()
    want = value(mm_x) @ value(mm_w) * scale
    assert_accurate(shared, want, want.bfloat16())
    # a mirrored rank sends rank 0's rows: the first four, two for each expert, come twice
    rows = value(x)
    parts = [torch.cat([rows[a : a + 2]] * 2) @ value(w)[e] for e, a in ((0, 0), (1, 2))]
    want = torch.cat(parts) * scale
    assert_accurate(y, want, want.bfloat16())
    parts = [rows[0:2] @ value(w)[0], rows[4:6] @ value(w)[1]]
    want = torch.cat(parts * 2) * scale
    assert_accurate(back, want, want.bfloat16())


def test_float4():
    x, w = (
        make(4, 32, dtype=torch.uint8, high=255, low=0),
        make(1, 64, 2, dtype=torch.uint8, high=255, low=0),
    )
    s, t = powers(1, 4, 1, 2), powers(2, 1, 1, 4, 2)
    codes = {f"{side}_dtype": torch_npu.float4_e2m1fn_x2 for side in SIDES}
    given = (x, w, s.npu(), t.npu(), NAME, 2, [2, 2], [2, 2], 5)
    y, _, _ = torch_npu.npu_alltoallv_quant_gmm(*given, **options(), **codes)
    values = [_formats.decode(v.cpu(), "float4_e2m1fn_x2") for v in (x, w)]
    a, b = micro(values[0], values[1][0], s, t[0])
    want = torch.cat([(a @ b)[:2]] * 2)
    assert y.dtype == torch.float16
    assert_accurate(y, want, want.half())


def call(**changes):
    given = {
        "gmm_x": hifloat(8, 6),
        "gmm_weight": hifloat(2, 6, 4),
        "gmm_x_scale": make(1),
        "gmm_weight_scale": make(1),
        "hcom": NAME,
        "ep_world_size": 2,
        "send_counts": [2] * 4,
        "recv_counts": [2] * 4,
        "gmm_y_dtype": 15,
        **options(1),
    }
    return torch_npu.npu_alltoallv_quant_gmm(**{**given, **changes})


@pytest.mark.parametrize(
    "changes,message",
    [
        ({"gmm_x_quant_mode": 2}, "'gmm_x_quant_mode' must be 1 or 6, but received 2"),
        ({"gmm_weight_quant_mode": 6}, "'gmm_weight_quant_mode' must be 1, but received 6"),
        ({"gmm_x_dtype": None}, "'gmm_x_dtype' must be 'hifloat8', but received None"),
        ({"send_counts": [2] * 3}, "'send_counts' must be of e .* = 4 counts"),
        ({"send_counts": [3] * 4}, r"'send_counts' must be counts that add up .*\(8\).* 12"),
        ({"gmm_y_dtype": 6}, "'gmm_y_dtype' must be torch.float16 or torch.bfloat16"),
        ({"comm_mode": "aiv"}, "'comm_mode' must be .*but received 'aiv'"),
        ({"group_size": [1, 1, 32]}, "'group_size' must be"),
    ],
)
def test_refusals(changes, message):
    with pytest.raises(RuntimeError, match=message):
        call(**changes)
