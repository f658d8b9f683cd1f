"""npu_quant_fusion_attention and its gradient against plain attention in fp64 on the decoded values."""

import math

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.support import make
from torch_npu.ops._shared._formats import hifloat8_values

HIFLOAT8 = torch_npu.hifloat8
FORMATS = [HIFLOAT8, torch.float8_e4m3fn, torch.float8_e5m2]
SCALE = 0.25
#: half a step of the weights: hifloat8 has 3 bits near 1, then 2, float8 3 and 2
STEP = {HIFLOAT8: 2.0**-3, torch.float8_e4m3fn: 2.0**-4, torch.float8_e5m2: 2.0**-3}


@pytest.fixture(autouse=True)
def chip():
    with on("A5"):
        yield


def numbers(shape, kind, seed):
    """Small numbers in the format (bytes for hifloat8), and their values in fp64."""
    if kind == HIFLOAT8:
        made = make(*shape, dtype=torch.uint8, low=8, high=48, seed=seed)
        made = made + 128 * make(*shape, dtype=torch.uint8, low=0, high=2, seed=seed + 50)
        return made, torch.tensor(hifloat8_values(), dtype=torch.float64)[made.cpu().long()]
    made = make(*shape, low=-2, high=2, seed=seed).to(kind)
    return made, made.cpu().double()


def heads_first(x, layout, heads):
    if layout in ("BSH", "SBH"):
        x = x.unflatten(2, (heads, -1))
    order = {"BSH": (0, 2, 1, 3), "SBH": (1, 2, 0, 3), "BSND": (0, 2, 1, 3), "BNSD": (0, 1, 2, 3)}
    return x.permute(order[layout])


def shape_of(layout, batch, heads, length, size):
    return {
        "BSH": (batch, length, heads * size),
        "SBH": (length, batch, heads * size),
        "BSND": (batch, length, heads, size),
        "BNSD": (batch, heads, length, size),
    }[layout]


def factors(batch, heads, length, block, seed):
    made = make(batch, heads, -(-length // block), 1, low=0.2, high=0.6, seed=seed)
    index = torch.arange(length) // block
    return made, made.cpu().double()[:, :, index]


def grouped(x, heads):
    return x.repeat_interleave(heads // x.shape[1], 1)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("layout", ["BSH", "SBH", "BSND", "BNSD"])
@pytest.mark.parametrize("rows,columns,key_heads,p", [(5, 7, 4, None), (130, 600, 2, 15.0)])
def test_attention(kind, layout, rows, columns, key_heads, p):
    batch, heads, size = 2, 4, 16
    query, q = numbers(shape_of(layout, batch, heads, rows, size), kind, 1)
    key, k = numbers(shape_of(layout, batch, key_heads, columns, size), kind, 2)
    value, v = numbers(shape_of(layout, batch, key_heads, columns, size), kind, 3)
    dq, q_factor = factors(batch, heads, rows, 128, 4)
    dk, k_factor = factors(batch, key_heads, columns, 256, 5)
    dv, v_factor = factors(batch, key_heads, columns, 512, 6)
    out, top, total, empty, *zeros = torch_npu.npu_quant_fusion_attention(
        query, key, value, heads, layout, d_scale_q=dq, d_scale_k=dk, d_scale_v=dv,
        p_scale=None if p is None else torch.tensor([p]).npu(), scale=SCALE,
        query_dtype=kind if kind == HIFLOAT8 else None,
    )  # fmt: skip
    q = heads_first(q, layout, heads) * q_factor
    k = grouped(heads_first(k, layout, key_heads) * k_factor, heads)
    v = grouped(heads_first(v, layout, key_heads) * v_factor, heads)
    scores = q @ k.mT * SCALE
    right = scores.softmax(-1) @ v
    assert out.dtype == torch.bfloat16 and out.shape == query.shape and zeros == [0, 0, 0]
    assert empty.numel() == 0
    found = heads_first(out.cpu().double(), layout, heads)
    # each weight is off by half a step at most; the scores of hifloat8 by half a step of float16
    bound = (scores.softmax(-1) @ v.abs()) * (STEP[kind] + 2e-2) + 4e-3
    assert ((found - right).abs() <= bound).all()
    # rounding errors of many weights cancel
    assert (found - right).abs().mean() <= 0.35 * bound.mean()
    lse = top.cpu().double() + total.cpu().double().log()
    torch.testing.assert_close(lse[..., 0], scores.logsumexp(-1), rtol=2e-3, atol=2e-3)
    shift = math.log(p) if p is not None and kind == HIFLOAT8 else 0.0
    torch.testing.assert_close(
        top.cpu().double()[..., 0], scores.amax(-1) - shift, rtol=4e-3, atol=4e-3
    )


def test_weights_are_rounded_to_the_format():
    """One key of weight 1 and one of weight exp(-1): the second becomes the nearest hifloat8."""
    bytes_of = {v: b for b, v in enumerate(hifloat8_values())}
    query = torch.full((1, 1, 1, 1), bytes_of[1.0], dtype=torch.uint8)
    key = torch.tensor([bytes_of[0.0], bytes_of[-1.0]], dtype=torch.uint8).view(1, 2, 1, 1)
    value = torch.tensor([bytes_of[0.0], bytes_of[1.0]], dtype=torch.uint8).view(1, 2, 1, 1)
    one = torch.ones(1, 1, 1, 1).npu()
    out, top, total, *_ = torch_npu.npu_quant_fusion_attention(
        query.npu(), key.npu(), value.npu(), 1, "BSND", d_scale_q=one, d_scale_k=one,
        d_scale_v=one, query_dtype=HIFLOAT8,
    )  # fmt: skip
    grid = torch.tensor([v for v in hifloat8_values() if math.isfinite(v)])
    nearest = grid[(grid - math.exp(-1)).abs().argmin()]
    expected = (nearest / (1 + math.exp(-1))).bfloat16()
    assert out.item() == expected.item() and top.item() == 0
    assert math.isclose(total.item(), 1 + math.exp(-1), rel_tol=1e-6)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("layout", ["BSH", "SBH", "BSND", "BNSD"])
@pytest.mark.parametrize("rows,columns,key_heads", [(5, 7, 4), (600, 530, 2)])
def test_gradients(kind, layout, rows, columns, key_heads):
    batch, heads, size = 1, 4, 16
    query, q = numbers(shape_of(layout, batch, heads, rows, size), kind, 1)
    key, k = numbers(shape_of(layout, batch, key_heads, columns, size), kind, 2)
    value, v = numbers(shape_of(layout, batch, key_heads, columns, size), kind, 3)
    outer, g = numbers(shape_of(layout, batch, heads, rows, size), kind, 7)
    counts = ((heads, rows), (key_heads, columns), (key_heads, columns), (heads, rows))
    made = [factors(batch, n, s, 512, 4 + i) for i, (n, s) in enumerate(counts)]
    plain = [
        (heads_first(t, layout, n) * f).requires_grad_(i < 3)
        for i, (t, (n, _), (_, f)) in enumerate(zip((q, k, v, g), counts, made, strict=True))
    ]
    q, k, v, g = plain
    scores = q @ grouped(k, heads).mT * SCALE
    right = scores.softmax(-1) @ grouped(v, heads)
    right.backward(g)
    top = scores.amax(-1, keepdim=True)
    total = (scores - top).exp().sum(-1, keepdim=True)
    back = {"BSH": (0, 2, 1, 3), "SBH": (2, 0, 1, 3), "BSND": (0, 2, 1, 3), "BNSD": (0, 1, 2, 3)}
    attention = right.detach().permute(back[layout]).reshape(query.shape).bfloat16()
    found = torch_npu.npu_quant_fusion_attention_backward(
        query, key, value, outer, heads, layout, *(f for f, _ in made),
        p_scale=torch.tensor([64.0]).npu(), ds_scale=torch.tensor([32.0]).npu(),
        softmax_max=top.detach().float().npu(), softmax_sum=total.detach().float().npu(),
        attention_in=attention.npu(), scale_value=SCALE,
        query_dtype=kind if kind == HIFLOAT8 else None,
    )  # fmt: skip
    assert [t.numel() for t in found[3:]] == [0] * 4 and found[6].dtype == torch.float32
    # rounding moves a weight, and a gradient of a score, by a quarter at most, where they are numbers of one mantissa bit
    weights = scores.softmax(-1).detach()
    of_scores = weights * (g @ grouped(v, heads).mT - (g * right).sum(-1, keepdim=True)).detach()
    # the attention is given in bfloat16
    given = (g * right).abs().sum(-1, keepdim=True).detach() * 2.0**-8
    of_scores = of_scores.abs() + 4 * weights * given
    q, k, g = q.detach(), k.detach(), g.detach()
    moved = (
        of_scores.abs() @ grouped(k, heads).abs() * SCALE,
        (of_scores.abs().mT @ q.abs() * SCALE).unflatten(1, (key_heads, -1)).sum(2),
        (weights.mT @ g.abs()).unflatten(1, (key_heads, -1)).sum(2),
    )
    counts = (heads, key_heads, key_heads)
    for mine, leaf, most, n in zip(found[:3], plain, moved, counts, strict=False):
        assert mine.dtype == torch.bfloat16
        error = (heads_first(mine.cpu().double(), layout, n) - leaf.grad).abs()
        assert (error <= 0.25 * most + 1e-2 * leaf.grad.abs() + 1e-3).all()
        assert error.mean() <= 0.06 * most.mean()


def call(**changes):
    given = {
        "query": make(1, 5, 2, 16, dtype=torch.uint8, low=0, high=72),
        "key": make(1, 7, 2, 16, dtype=torch.uint8, low=0, high=72),
        "value": make(1, 7, 2, 16, dtype=torch.uint8, low=0, high=72),
        "head_num": 2,
        "input_layout": "BSND",
        "d_scale_q": make(1, 2, 1, 1),
        "d_scale_k": make(1, 2, 1, 1),
        "d_scale_v": make(1, 2, 1, 1),
        "query_dtype": HIFLOAT8,
    } | changes
    return torch_npu.npu_quant_fusion_attention(**given)


@pytest.mark.parametrize(
    "changes,message",
    [
        ({"query_dtype": None}, "'query' must be of format hifloat8, float8_e4m3fn or float8_e5m2"),
        ({"input_layout": "TND"}, "'input_layout' must be 'BSH', 'SBH', 'BSND' or 'BNSD'"),
        ({"head_num": 3}, r"'head_num' must be the heads of query \(2\), but received 3"),
        ({"d_scale_q": 2}, r"'d_scale_q' must be of shape \(1, 2, 1, 1\)"),
        ({"d_scale_v": 3}, r"'d_scale_v' must be of shape \(1, 2, 1, 1\)"),
        ({"p_scale": 2}, r"'p_scale' must be of shape \(1\)"),
        ({"key": 3}, "'key' must be of heads that divide those of query"),
    ],
)
def test_refusals(changes, message):
    sized = {
        "d_scale_q": lambda n: make(1, 2, n, 1),
        "d_scale_v": lambda n: make(1, 2, n, 1),
        "p_scale": make,
        "key": lambda n: make(1, 7, n, 16, dtype=torch.uint8, low=0, high=72),
    }
    changes = {k: sized[k](v) if k in sized else v for k, v in changes.items()}
    with pytest.raises((RuntimeError, ValueError, TypeError), match=message):
        call(**changes)


def test_other_chips_refuse():
    with on("A2"), pytest.raises(NotImplementedError, match="npu_quant_fusion_attention"):
        call()


def test_gradients_need_what_the_forward_pass_gave():
    given = [make(1, 5, 2, 16, dtype=torch.uint8, low=0, high=72) for _ in range(4)]
    with pytest.raises(RuntimeError, match="'softmax_max' must be given to compute the gradients"):
        torch_npu.npu_quant_fusion_attention_backward(
            *given, 2, "BSND", *(make(1, 2, 1, 1) for _ in range(4)), query_dtype=HIFLOAT8
        )
