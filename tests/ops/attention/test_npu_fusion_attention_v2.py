"""npu_fusion_attention_v2: what it has beyond npu_fusion_attention, against dense attention in fp64."""

import pytest
import torch

import torch_npu
from softnpu import settings
from tests.ops.attention.fusion_reference import TRIANGLE, attend, hidden, kept
from tests.ops.families import on
from tests.ops.support import gradcheck, make, relaxed
from torch_npu.ops._registry import operators

SCALE = 0.3


def close(mine, exact, near=1e-5):
    torch.testing.assert_close(mine.detach().cpu().double(), exact.detach(), rtol=near, atol=near)


def compare(pse, bias, layout="BNSD", batch=2, sq=9, skv=11, **options):
    """Output and gradients with pse; `bias(pse)` is what it adds to the scores, (B, N, Sq, Skv)."""
    q, k, v = (
        make(batch, 3, s, 8, low=-2, high=2, seed=s).requires_grad_() for s in (sq, skv, skv)
    )
    pse = pse.requires_grad_()
    dy = make(batch, 3, sq, 8, seed=1)
    out = torch_npu.npu_fusion_attention_v2(q, k, v, 3, layout, pse=pse, scale=SCALE, **options)[0]
    grads = torch.autograd.grad(out, (q, k, v, pse), dy)
    exact = [x.detach().cpu().double().requires_grad_() for x in (q, k, v, pse)]
    added = bias(exact[3]).expand(batch, 3, sq, skv)
    rows = [attend(*(x[b] for x in exact[:3]), SCALE, bias=added[b])[0] for b in range(batch)]
    want = torch.stack(rows)
    close(out, want)
    for mine, theirs in zip(
        grads, torch.autograd.grad(want, exact, dy.cpu().double()), strict=True
    ):
        close(mine, theirs, 2e-5)


@pytest.mark.parametrize("pse_type,factor", [(0, 1.0), (1, SCALE)])
@pytest.mark.parametrize("shape", [(2, 3, 9, 11), (2, 3, 1, 11), (1, 3, 9, 11)])
def test_pse_before_or_after_scaling(pse_type, factor, shape):
    compare(make(*shape), lambda pse: pse * factor, pse_type=pse_type)


@pytest.mark.parametrize("pse_type", [2, 3])
@pytest.mark.parametrize("shape", [(3,), (2, 3)])
@pytest.mark.parametrize("q_start,kv_start", [(None, None), ([6], [0]), ([0], [4])])
def test_alibi(pse_type, shape, q_start, kv_start):
    rows = torch.arange(9) + (q_start or [0])[0]
    columns = torch.arange(11) + (kv_start or [0])[0]
    far = (columns - rows[:, None]).abs().double()
    far = far.sqrt() if pse_type == 3 else far
    with on("A5"):  # the others ask for equal lengths
        compare(
            make(*shape, low=0.1, high=0.5),
            lambda slopes: -slopes.view(-1, 3, 1, 1) * far,
            pse_type=pse_type,
            q_start_idx=q_start,
            kv_start_idx=kv_start,
        )


def test_rope():
    q, k, v, dy = (make(*s, low=-1, high=1, seed=i).requires_grad_() for i, s in enumerate(
        ((9, 4, 12), (14, 2, 12), (14, 2, 8), (9, 4, 8))))  # fmt: skip
    q_rope, k_rope = (make(*s, seed=9).requires_grad_() for s in ((9, 4, 5), (14, 2, 5)))
    with settings.override(strict=False):  # float32, for the numbers
        out = torch_npu.npu_fusion_attention_v2(
            q, k, v, 4, "TND", query_rope=q_rope, key_rope=k_rope, scale=SCALE, sparse_mode=3,
            atten_mask=TRIANGLE.npu(), actual_seq_qlen=[4, 9], actual_seq_kvlen=[6, 14],
        )[0]  # fmt: skip
        grads = torch.autograd.grad(out, (q, k, v, q_rope, k_rope), dy)
    exact = [x.detach().cpu().double().requires_grad_() for x in (q, k, v, q_rope, k_rope)]
    joined_q, joined_k = torch.cat([exact[0], exact[3]], -1), torch.cat([exact[1], exact[4]], -1)
    want = [
        attend(
            *(x.transpose(0, 1) for x in (joined_q[a], joined_k[b], exact[2][b])),
            SCALE,
            hidden(3, n, m),
        )[0]
        for a, b, n, m in ((slice(0, 4), slice(0, 6), 4, 6), (slice(4, 9), slice(6, 14), 5, 8))
    ]
    want = torch.cat(want, 1).transpose(0, 1)
    close(out, want)
    for mine, theirs in zip(
        grads, torch.autograd.grad(want, exact, dy.detach().cpu().double()), strict=True
    ):
        close(mine, theirs, 2e-5)


@pytest.mark.parametrize("layout", ["BNSD", "BSH"])
def test_rope_outside_tnd_on_a5(layout):
    q, rope, v = (make(1, 2, 6, size, seed=size) for size in (12, 4, 8))
    given = [x if layout == "BNSD" else x.transpose(1, 2).flatten(2) for x in (q, v, rope)]
    leaves = [x.clone().requires_grad_() for x in given]
    with on("A5"), settings.override(strict=False):  # small sizes
        out = torch_npu.npu_fusion_attention_v2(
            leaves[0],
            leaves[0],
            leaves[1],
            2,
            layout,
            query_rope=leaves[2],
            key_rope=leaves[2],
            scale=SCALE,
        )[0]
        grads = torch.autograd.grad(out.square().sum(), leaves)
    exact = [x.cpu().double().requires_grad_() for x in (q, v, rope)]
    joined = torch.cat([exact[0][0], exact[2][0]], -1)
    want = attend(joined, joined, exact[1][0], SCALE)[0]
    for mine, theirs in zip(
        (out, *grads), (want, *torch.autograd.grad(want.square().sum(), exact)), strict=True
    ):
        theirs = theirs.detach().view(1, 2, 6, -1)
        close(mine, theirs if layout == "BNSD" else theirs.transpose(1, 2).flatten(2), 2e-5)


def test_window_names():
    """pre_tokens and next_tokens, where npu_fusion_attention says tockens; dropout and sink go through too."""
    q = make(1, 2, 9, 8, low=-2, high=2)
    mask, keep, sink = hidden(4, 9, 9, pre=3, after=1), kept(4, 8, 0.7, 2, 9, 9), make(2)
    out, *_, seed, offset, numels = torch_npu.npu_fusion_attention_v2(
        q, q, q, 2, "BNSD", scale=SCALE, sparse_mode=4, atten_mask=TRIANGLE.npu(), pre_tokens=3, next_tokens=1,
        keep_prob=0.7, seed=4, offset=8, sink=sink,
    )  # fmt: skip
    exact = q[0].cpu().double()
    want = attend(
        exact, exact, exact, SCALE, mask, sink=sink.cpu().double(), keep=keep, keep_prob=0.7
    )[0]
    close(out[0], want)
    assert (seed, offset, numels) == (4, 8, 2 * 9 * 9)


@pytest.mark.parametrize("name", ["npu_fusion_attention_v2", "npu_fusion_attention_grad_v2"])
def test_formula_and_native_agree(name):
    operator = operators[name]
    formula, native = operator.as_function("kernel"), operator.as_function("native")
    for sample in operator.samples:
        args, kwargs = sample.inputs(
            lambda *shape, **options: make(*shape, **options, device="cpu")
        )
        slow, fast = formula(*args, **kwargs), native(*args, **kwargs)
        for a, b in zip(slow, fast, strict=True):
            torch.testing.assert_close(a, b)


@relaxed
def test_gradients():
    q, k, v = (make(s, 2, 4, dtype=torch.float64, requires_grad=True) for s in (3, 5, 5))
    q_rope, k_rope = (make(s, 2, 2, dtype=torch.float64, requires_grad=True) for s in (3, 5))

    def call(q, k, v, q_rope, k_rope):
        return torch_npu.npu_fusion_attention_v2(
            q,
            k,
            v,
            2,
            "TND",
            query_rope=q_rope,
            key_rope=k_rope,
            actual_seq_qlen=[1, 3],
            actual_seq_kvlen=[2, 5],
        )[0]

    gradcheck(call, q, k, v, q_rope, k_rope)


def test_rope_outside_tnd():
    q = make(1, 2, 8, 16)
    with pytest.raises(
        RuntimeError,
        match="npu_fusion_attention_v2: argument 'query_rope' must be given with input_layout TND",
    ):
        torch_npu.npu_fusion_attention_v2(q, q, q, 2, "BNSD", query_rope=q, key_rope=q)


def test_rope_of_the_key_missing():
    q = make(8, 2, 16)
    with pytest.raises(RuntimeError, match="argument 'key_rope' must be given with query_rope"):
        torch_npu.npu_fusion_attention_v2(
            q, q, q, 2, "TND", query_rope=q, actual_seq_qlen=[8], actual_seq_kvlen=[8]
        )


def test_bad_pse_type():
    q = make(1, 2, 8, 16)
    with pytest.raises(RuntimeError, match="argument 'pse_type' must be 0, 1, 2 or 3.*4"):
        torch_npu.npu_fusion_attention_v2(q, q, q, 2, "BNSD", pse=make(1, 2, 8, 8), pse_type=4)


def test_slopes_of_another_dtype():
    q = make(1, 2, 8, 16, dtype=torch.float16)
    with pytest.raises(RuntimeError, match="argument 'pse' must be of dtype torch.float32"):
        torch_npu.npu_fusion_attention_v2(
            q, q, q, 2, "BNSD", pse=make(2, dtype=torch.float16), pse_type=2
        )
