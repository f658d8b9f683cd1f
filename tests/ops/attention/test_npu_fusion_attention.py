"""npu_fusion_attention against dense attention in fp64."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import torch_npu
from tests.ops.attention.fusion_reference import (
    LAYOUTS,
    PREFIX_MASK,
    TRIANGLE,
    attend,
    hidden,
    kept,
    packed,
    philox_words,
    to_layout,
)
from tests.ops.families import on
from tests.ops.support import assert_accurate, gradcheck, make, relaxed
from torch_npu.ops._registry import operators
from torch_npu.ops.attention import _masks

SCALE = 0.3


def inputs(batch, heads, kv_heads, sq, skv, size, value_size=None, dtype=torch.float32):
    """query, key, value and the gradient of the output, (B, N, S, D) on the CPU."""
    value_size = value_size or size
    shapes = [
        (heads, sq, size),
        (kv_heads, skv, size),
        (kv_heads, skv, value_size),
        (heads, sq, value_size),
    ]
    high = min(2, 12 / size)  # scores of an ordinary size
    return [
        make(batch, *shape, dtype=dtype, device="cpu", low=-high, high=high, seed=index)
        for index, shape in enumerate(shapes)
    ]


def run(q, k, v, dy, layout="BNSD", grads=(), **options):
    """The operator on the device, from BNSD inputs: outputs and gradients of q, k, v and `grads`."""
    leaves = [to_layout(x, layout).npu().requires_grad_() for x in (q, k, v)]
    result = torch_npu.npu_fusion_attention(*leaves, q.shape[1], layout, scale=SCALE, **options)
    found = torch.autograd.grad(result[0], (*leaves, *grads), to_layout(dy, layout).npu())
    return result, found


def expected(q, k, v, dy, per_batch=lambda b: {}, dtype=torch.float64, extra=()):
    """The reference: outputs and gradients, (B, N, S, D)."""
    leaves = [x.to(dtype).requires_grad_() for x in (q, k, v)]
    rows = [attend(*(x[b] for x in leaves), SCALE, **per_batch(b)) for b in range(q.shape[0])]
    out, peak, total = (torch.stack(x) for x in zip(*rows, strict=True))
    return out, peak, total, torch.autograd.grad(out, (*leaves, *extra), dy.to(dtype))


def compare(q, k, v, dy, layout="BNSD", per_batch=lambda b: {}, **options):
    """Output, statistics and gradients of the operator against the reference."""
    (out, peak, total, *_), grads = run(q, k, v, dy, layout, **options)
    want, want_peak, want_total, want_grads = expected(q, k, v, dy, per_batch)
    plain, *_, plain_grads = expected(q, k, v, dy, per_batch, dtype=q.dtype)
    assert out.dtype == q.dtype and peak.dtype == total.dtype == torch.float32
    assert_accurate(out, to_layout(want, layout), to_layout(plain, layout))
    for mine, exact in ((peak, want_peak), (total, want_total)):
        assert mine.shape == (*exact.shape, 8)
        torch.testing.assert_close(
            mine.cpu().double(), exact[..., None].expand(mine.shape), rtol=1e-4, atol=1e-4
        )
    for mine, exact, rough in zip(grads, want_grads, plain_grads, strict=True):
        assert_accurate(mine, to_layout(exact, layout), to_layout(rough, layout), slack=2e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_layouts(layout, dtype):
    compare(*inputs(2, 4, 2, 37, 61, 24, 16, dtype), layout)


def test_layout_in_lower_case():
    q, k, v, dy = inputs(1, 2, 2, 5, 6, 8)
    torch.testing.assert_close(run(q, k, v, dy, "BSND")[0][0], torch_npu.npu_fusion_attention(
        *(to_layout(x, "BSND").npu() for x in (q, k, v)), 2, "bsnd", scale=SCALE)[0])  # fmt: skip


@pytest.mark.parametrize("size,value_size", [(1, 1), (5, 3), (72, 72), (192, 128), (512, 512)])
def test_head_sizes(size, value_size):
    compare(*inputs(1, 2, 1, 13, 19, size, value_size))


@pytest.mark.parametrize("sq,skv", [(1, 1), (1, 700), (400, 1), (401, 523)])
@pytest.mark.parametrize("heads,kv_heads", [(3, 3), (4, 1)])
def test_lengths_beyond_a_block(sq, skv, heads, kv_heads):
    compare(*inputs(1, heads, kv_heads, sq, skv, 8))


@pytest.mark.parametrize("mode", range(7))
@pytest.mark.parametrize("sq,skv", [(21, 30), (30, 21), (300, 520)])
def test_sparse_modes(mode, sq, skv):
    prefix = [max(0, skv - sq) + 2, max(0, skv - sq) + 9]
    window = {"pre": 9, "after": 4} if mode in (0, 4) else {}
    seen = [hidden(mode, sq, skv, prefix=p, **window) for p in prefix]
    options = {"sparse_mode": mode, "atten_mask": TRIANGLE.npu()}
    if mode == 0:
        options["atten_mask"] = seen[0].npu()
    if mode == 1:
        seen = [make(sq, skv, dtype=torch.bool, device="cpu", seed=3)] * 2
        options["atten_mask"] = seen[0].npu()
    if window:
        options |= {"pre_tockens": 9, "next_tockens": 4}
    if mode in (5, 6):
        mask = torch.stack(seen).unsqueeze(1) if mode == 5 else PREFIX_MASK
        options |= {"prefix": prefix, "atten_mask": mask.npu()}
    compare(*inputs(2, 2, 1, sq, skv, 8), per_batch=lambda b: {"mask": seen[b]}, **options)


@pytest.mark.parametrize("pre,after", [(9, -3), (-3, 7)])
def test_negative_tokens(pre, after):
    mask = hidden(0, 12, 14, pre=pre, after=after)
    compare(
        *inputs(1, 2, 2, 12, 14, 8), per_batch=lambda b: {"mask": mask}, atten_mask=mask.npu(),
        pre_tockens=pre, next_tockens=after,
    )  # fmt: skip


def test_band_counts_without_the_mask_saying_so():
    nothing = torch.zeros(9, 9, dtype=torch.bool)
    compare(
        *inputs(1, 2, 2, 9, 9, 8), per_batch=lambda b: {"mask": hidden(0, 9, 9, pre=3, after=1)},
        atten_mask=nothing.npu(), pre_tockens=3, next_tockens=1,
    )  # fmt: skip


@pytest.mark.parametrize("mode", [0, 2, 3, 4])
def test_modes_without_mask_compute_everything(mode):
    compare(*inputs(1, 2, 2, 9, 11, 8), sparse_mode=mode, pre_tockens=1, next_tockens=0)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8])
@pytest.mark.parametrize("shape", [(2, 3), (2, 1), (1, 1), ()])
def test_mask_shapes(shape, dtype):
    mask = make(*shape, 10, 12, dtype=dtype, device="cpu", low=0, high=2)
    full = mask.bool().expand(2, 3, 10, 12)
    compare(
        *inputs(2, 3, 3, 10, 12, 8),
        per_batch=lambda b: {"mask": full[b]},
        atten_mask=mask.npu(),
        sparse_mode=1,
    )


@pytest.mark.parametrize("inner_precise", [0, 2])
def test_rows_that_see_nothing(inner_precise):
    q, k, v, dy = inputs(1, 2, 2, 9, 5, 8)
    (out, peak, total, *_), (dq, dk, dv) = run(
        q, k, v, dy, sparse_mode=3, atten_mask=TRIANGLE.npu(), inner_precise=inner_precise
    )
    compare(
        q,
        k,
        v,
        dy,
        per_batch=lambda b: {"mask": hidden(3, 9, 5)},
        sparse_mode=3,
        atten_mask=TRIANGLE.npu(),
    )
    limit = torch.finfo(torch.float32).max
    assert torch.equal(out[:, :, :4].cpu(), torch.zeros(1, 2, 4, 8))
    assert torch.equal(dq[:, :, :4].cpu(), torch.zeros(1, 2, 4, 8))
    assert peak[0, 0, 3].eq(-limit).all() and total[0, 0, 3].eq(limit).all()


def test_everything_masked():
    q, k, v, dy = inputs(1, 1, 1, 3, 4, 8)
    (out, *_), grads = run(
        q, k, v, dy, atten_mask=torch.ones(3, 4, dtype=torch.bool).npu(), sparse_mode=1
    )
    assert all(x.eq(0).all() for x in (out, *grads))


# --- TND ----------------------------------------------------------------------------------------------------------

Q_LENGTHS, KV_LENGTHS = [5, 0, 13, 7, 0], [7, 2, 13, 9, 0]


def ends(lengths):
    total, found = 0, []
    for n in lengths:
        total += n
        found.append(total)
    return found[:-1] + [0]


def run_tnd(mode=0, softmax_layout="", masks=None, spare=0, dropout=None, **options):
    """Operator and reference on packed sequences; the last batch takes no part, `spare` rows neither."""
    heads, kv_heads = 4, 2
    q = make(sum(Q_LENGTHS) + spare, heads, 8, device="cpu", low=-2, high=2, seed=1)
    k, v = (
        make(sum(KV_LENGTHS) + spare, kv_heads, 8, device="cpu", low=-2, high=2, seed=s)
        for s in (2, 3)
    )
    dy = make(*q.shape, device="cpu", seed=4)
    leaves = [x.npu().requires_grad_() for x in (q, k, v)]
    out, peak, total, _, _, _, numels = torch_npu.npu_fusion_attention(
        *leaves, heads, "TND", scale=SCALE, sparse_mode=mode, softmax_layout=softmax_layout,
        actual_seq_qlen=ends(Q_LENGTHS), actual_seq_kvlen=ends(KV_LENGTHS), **options,
    )  # fmt: skip
    grads = torch.autograd.grad(out, leaves, dy.npu())
    exact = [x.double().requires_grad_() for x in (q, k, v)]
    want, peaks, totals = [], [], []
    i = j = first = 0
    for b, (n, m) in enumerate(zip(Q_LENGTHS, KV_LENGTHS, strict=True)):
        if n == 0:
            j += m
            continue
        rows = [exact[0][i : i + n], exact[1][j : j + m], exact[2][j : j + m]]
        more = {"mask": None if masks is None else masks[b]}
        if dropout is not None:
            more |= {
                "keep": dropout[0][first : first + heads * n * m].view(heads, n, m),
                "keep_prob": dropout[1],
            }
        o, p, t = attend(*(x.transpose(0, 1) for x in rows), SCALE, **more)
        want.append(o.transpose(0, 1))
        by_row = softmax_layout == "TND"
        peaks.append((p.T if by_row else p).reshape(-1))
        totals.append((t.T if by_row else t).reshape(-1))
        i, j, first = i + n, j + m, first + heads * n * m
    want = torch.cat([*want, torch.zeros(spare, heads, 8, dtype=torch.float64)])
    want_grads = torch.autograd.grad(want, exact, dy.double())
    assert numels == first
    torch.testing.assert_close(out.cpu().double(), want, rtol=1e-5, atol=1e-5)
    for mine, exact_stats in ((peak, peaks), (total, totals)):
        assert mine.shape == (q.shape[0], heads, 8)
        flat = mine.cpu().double().view(-1, 8)[: i * heads]
        torch.testing.assert_close(
            flat, torch.cat(exact_stats)[:, None].expand(-1, 8), rtol=1e-4, atol=1e-4
        )
    for mine, exact_grad in zip(grads, want_grads, strict=True):
        torch.testing.assert_close(mine.cpu().double(), exact_grad, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("softmax_layout", ["", "TND"])
@pytest.mark.parametrize("spare", [0, 3])
def test_tnd(softmax_layout, spare):
    run_tnd(softmax_layout=softmax_layout, spare=spare)


@pytest.mark.parametrize("mode", [0, 1, 2, 3, 4, 6, 7, 8])
def test_tnd_modes(mode):
    options, window, prefix = {"atten_mask": TRIANGLE.npu()}, {}, [3, 2, 4, 5, 0]
    if mode in (0, 4):
        window = {"pre": 6, "after": 2}
    if mode in (7, 8):
        window = {"pre": 20, "after": -2 if mode == 7 else 1}
    if mode == 6:
        options = {"atten_mask": PREFIX_MASK.npu(), "prefix": prefix}
    if window:
        options |= {"pre_tockens": window["pre"], "next_tockens": window["after"]}
    masks = [
        hidden(mode, n, m, prefix=p, first=b == 0, last=b == 3, **window)
        for b, (n, m, p) in enumerate(zip(Q_LENGTHS, KV_LENGTHS, prefix, strict=True))
    ]
    if mode in (0, 1):
        shared = make(13, 13, dtype=torch.bool, device="cpu", seed=8)
        shared[:, 0] = False
        masks = [m | shared[: m.shape[0], : m.shape[1]] for m in masks]
        options["atten_mask"] = shared.npu()
    run_tnd(mode, masks=masks, **options)


def test_tnd_dropout():
    count = 4 * sum(n * m for n, m in zip(Q_LENGTHS, KV_LENGTHS, strict=True))
    run_tnd(dropout=(kept(7, 3, 0.75, count), 0.75), keep_prob=0.75, seed=7, offset=3)


def test_tnd_rows_without_keys():
    q, k = make(5, 2, 8), make(3, 2, 8)
    out, peak, *_ = torch_npu.npu_fusion_attention(
        q, k, k, 2, "TND", actual_seq_qlen=[2, 5], actual_seq_kvlen=[3, 3], softmax_layout="TND"
    )
    assert out[:2].ne(0).all() and out[2:].eq(0).all()
    assert peak[2:].eq(-torch.finfo(torch.float32).max).all()


@pytest.mark.parametrize("mode,uncut", [(7, 3), (8, 2)])
def test_cut_of_a_long_sequence(mode, uncut):
    """Half of the rows with mode 7 (8) equal the rows of the whole with mode 3 (2)."""
    q, k, v = (make(10, 1, 8, low=-2, high=2, seed=s) for s in range(3))
    whole = torch_npu.npu_fusion_attention(
        q,
        k,
        v,
        1,
        "TND",
        sparse_mode=uncut,
        atten_mask=TRIANGLE.npu(),
        actual_seq_qlen=[10],
        actual_seq_kvlen=[10],
    )[0]
    part = slice(0, 6) if mode == 7 else slice(4, 10)
    # Counted from the lower right corner, the diagonal of the whole has moved by the rows cut off below.
    moved = -4 if mode == 7 else 0
    half = torch_npu.npu_fusion_attention(
        q[part], k, v, 1, "TND", sparse_mode=mode, atten_mask=TRIANGLE.npu(), actual_seq_qlen=[6],
        actual_seq_kvlen=[10], pre_tockens=10, next_tockens=moved,
    )[0]  # fmt: skip
    torch.testing.assert_close(half, whole[part])


# --- pse, sink, dropout -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("shape", [(2, 3, 9, 11), (2, 3, 1, 11), (1, 3, 9, 11)])
def test_pse(shape, dtype):
    q, k, v, dy = inputs(2, 3, 3, 9, 11, 8, dtype=dtype)
    pse = make(*shape, dtype=dtype, seed=5).requires_grad_()
    (out, *_), grads = run(q, k, v, dy, grads=(pse,), pse=pse)
    exact = pse.detach().cpu().double().requires_grad_()
    full = exact.expand(2, 3, 9, 11)
    want, _, _, want_grads = expected(
        q, k, v, dy, lambda b: {"bias": SCALE * full[b]}, extra=(exact,)
    )
    near = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 4e-3, "atol": 4e-3}
    torch.testing.assert_close(out.cpu().double(), want, **near)
    for mine, exact_grad in zip(grads, want_grads, strict=True):
        torch.testing.assert_close(mine.cpu().double(), exact_grad, **near)


@pytest.mark.parametrize("layout", ["BNSD", "TND"])
def test_compressed_alibi(layout):
    """The last 1024 rows of pse stand for all of it under a causal mask."""
    length, heads = 1100, 2
    q, k, v, dy = inputs(1, heads, heads, length, length, 4)
    i, j = torch.arange(length)[:, None], torch.arange(length)
    pse = (j - i) * torch.tensor([0.05, 0.2]).view(1, 2, 1, 1)
    short = pse[:, :, -1024:].contiguous().npu().requires_grad_()
    want, _, _, want_grads = expected(
        q, k, v, dy, lambda b: {"bias": SCALE * pse[0].double(), "mask": j > i}
    )
    options = {"sparse_mode": 2, "atten_mask": TRIANGLE.npu(), "pse": short}
    if layout == "BNSD":
        (out, *_), grads = run(q, k, v, dy, grads=(short,), **options)
    else:
        leaves = [x[0].transpose(0, 1).contiguous().npu().requires_grad_() for x in (q, k, v)]
        (out, *_) = torch_npu.npu_fusion_attention(
            *leaves,
            heads,
            "TND",
            scale=SCALE,
            actual_seq_qlen=[length],
            actual_seq_kvlen=[length],
            **options,
        )
        grads = torch.autograd.grad(out, (*leaves, short), dy[0].transpose(0, 1).npu())
        out, *grads = (x.transpose(0, 1)[None] if x.dim() == 3 else x for x in (out, *grads))
    torch.testing.assert_close(out.cpu().double(), want, rtol=1e-5, atol=1e-5)
    for mine, exact in zip(grads, want_grads, strict=False):
        torch.testing.assert_close(mine.cpu().double(), exact, rtol=1e-4, atol=1e-4)
    assert grads[-1].shape == short.shape


def test_sink():
    q, k, v, dy = inputs(2, 4, 2, 7, 9, 8)
    sink = make(4, low=-1, high=3).requires_grad_()
    (out, peak, total, *_), grads = run(q, k, v, dy, grads=(sink,), sink=sink)
    exact = sink.detach().cpu().double().requires_grad_()
    want, want_peak, want_total, want_grads = expected(
        q, k, v, dy, lambda b: {"sink": exact}, extra=(exact,)
    )
    torch.testing.assert_close(out.cpu().double(), want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(peak[..., 0].cpu().double(), want_peak, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(total[..., 0].cpu().double(), want_total, rtol=1e-5, atol=1e-5)
    for mine, exact_grad in zip(grads, want_grads, strict=True):
        torch.testing.assert_close(mine.cpu().double(), exact_grad, rtol=1e-5, atol=1e-5)


def test_philox_is_the_published_one():
    assert philox_words(0, 0, 4) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


@pytest.mark.parametrize("seed,offset", [(5, 0), (2**40 + 3, 12), (1, 2**33)])
def test_dropout(seed, offset):
    keep = kept(seed, offset, 0.8, 2, 2, 5, 7)
    compare(
        *inputs(2, 2, 2, 5, 7, 8), per_batch=lambda b: {"keep": keep[b], "keep_prob": 0.8}, keep_prob=0.8, seed=seed,
        offset=offset,
    )  # fmt: skip


def test_dropout_mask():
    keep = kept(9, 4, 0.6, 1, 2, 5, 7)
    q, k, v, dy = inputs(1, 2, 2, 5, 7, 8)
    given = {"keep_prob": 0.6, "seed": 9, "offset": 4}
    compare(
        q,
        k,
        v,
        dy,
        per_batch=lambda b: {"keep": keep[b], "keep_prob": 0.6},
        dropout_mask=packed(keep).npu(),
        **given,
    )
    (none, *_), _ = run(q, k, v, dy, dropout_mask=torch.zeros_like(packed(keep)).npu(), **given)
    assert none.eq(0).all()


def test_dropout_draws_from_the_generator():
    q = make(1, 2, 40, 8)
    torch.npu.manual_seed(11)
    first = torch_npu.npu_fusion_attention(q, q, q, 2, "BNSD", keep_prob=0.5)
    second = torch_npu.npu_fusion_attention(q, q, q, 2, "BNSD", keep_prob=0.5)
    torch.npu.manual_seed(11)
    again = torch_npu.npu_fusion_attention(q, q, q, 2, "BNSD", keep_prob=0.5)
    named = torch_npu.npu_fusion_attention(
        q, q, q, 2, "BNSD", keep_prob=0.5, seed=first[4], offset=first[5]
    )
    assert first[4] == 11 and first[5] == 0 and first[6] == 2 * 40 * 40
    assert torch.equal(first[0], again[0]) and torch.equal(first[0], named[0])
    assert not torch.equal(first[0], second[0]) and first[5] != second[5]


def test_dropout_keeps_what_it_says():
    keep = torch.zeros(2**20 // 8, dtype=torch.uint8)
    torch.ops.softnpu.dropout_bits(3, 0, 0.3, keep)
    share = ((keep[:, None] >> torch.arange(8)) & 1).float().mean().item()
    assert abs(share - 0.3) < 3e-3


# --- the rest -----------------------------------------------------------------------------------------------------


def test_non_contiguous():
    q, k, v, dy = (x.transpose(1, 2) for x in inputs(1, 9, 9, 2, 2, 8))
    k, v = (torch.stack([x, x], -1)[..., 0] for x in (k, v))
    compare(q, k, v, dy)


@pytest.mark.parametrize("index", range(len(operators["npu_fusion_attention"].samples)))
def test_formula_and_native_agree(index):
    sample = operators["npu_fusion_attention"].samples[index]
    on_cpu = lambda *shape, **options: make(*shape, **options, device="cpu")  # noqa: E731
    args, kwargs = sample.inputs(on_cpu)
    operator = operators["npu_fusion_attention"]
    formula, native = operator.as_function("kernel"), operator.as_function("native")
    for slow, fast in zip(formula(*args, **kwargs), native(*args, **kwargs), strict=True):
        torch.testing.assert_close(slow, fast)


@relaxed
def test_gradients():
    q, k, v = (
        make(1, n, s, 4, dtype=torch.float64, requires_grad=True)
        for n, s in ((2, 3), (1, 5), (1, 5))
    )
    pse = make(1, 2, 3, 5, dtype=torch.float64, requires_grad=True)

    def call(q, k, v, pse):
        return torch_npu.npu_fusion_attention(
            q,
            k,
            v,
            2,
            "BNSD",
            pse=pse,
            scale=SCALE,
            keep_prob=0.7,
            seed=2,
            sparse_mode=3,
            atten_mask=TRIANGLE.npu(),
        )[0]

    gradcheck(call, q, k, v, pse)


def test_named_gradient():
    q, k, v, dy = inputs(1, 2, 2, 6, 8, 8)
    result, grads = run(q, k, v, dy)
    out, peak, total, *_ = result
    named = torch_npu.npu_fusion_attention_grad(
        q.npu(), k.npu(), v.npu(), dy.npu(), 2, "BNSD", softmax_max=peak, softmax_sum=total, attention_in=out,
        scale_value=SCALE,
    )  # fmt: skip
    for mine, theirs in zip(named, grads, strict=False):
        assert torch.equal(mine, theirs)
    assert named[3].numel() == 0 and named[4].numel() == 0


def test_backward_repeats_itself():
    """One kv head and several threads: the order of the sums is fixed."""
    q, k, v, dy = inputs(1, 4, 1, 120, 600, 16)
    first, second = run(q, k, v, dy)[1], run(q, k, v, dy)[1]
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_no_matrix_of_scores_is_held():
    q = make(1, 1, 3000, 16, dtype=torch.float16).requires_grad_()
    torch.npu.reset_peak_memory_stats()
    before = torch.npu.memory_allocated()
    torch_npu.npu_fusion_attention(q, q, q, 1, "BNSD")[0].sum().backward()
    assert (
        torch.npu.max_memory_allocated() - before < 4 * 2**20
    )  # the scores alone are 18 MiB in fp16


# --- what must fail -----------------------------------------------------------------------------------------------


def call(
    q_shape=(1, 2, 8, 16), kv_shape=None, heads=2, layout="BNSD", dtype=torch.float32, **options
):
    q, k = make(*q_shape, dtype=dtype), make(*(kv_shape or q_shape), dtype=dtype)
    return torch_npu.npu_fusion_attention(q, k, k, heads, layout, **options)


def test_bad_layout():
    with pytest.raises(
        RuntimeError,
        match="npu_fusion_attention: argument 'input_layout' must be BSH, SBH.*received.*NSD",
    ):
        call(layout="NSD")


def test_bad_dtype():
    with pytest.raises(
        RuntimeError, match="argument 'query' must be of dtype torch.float16.*float64"
    ):
        call(dtype=torch.float64)


@pytest.mark.parametrize("heads", [0, 3])
def test_bad_head_num(heads):
    with pytest.raises(RuntimeError, match="argument 'head_num' must be"):
        call(heads=heads)


def test_heads_that_do_not_group():
    with pytest.raises(RuntimeError, match="argument 'key' must be of heads that divide 4"):
        call((1, 4, 8, 16), (1, 3, 8, 16), heads=4)


@pytest.mark.parametrize("keep_prob", [0.0, 1.5])
def test_bad_keep_prob(keep_prob):
    with pytest.raises(RuntimeError, match="argument 'keep_prob' must be above 0 and at most 1"):
        call(keep_prob=keep_prob)


def test_reserved_padding_mask():
    with pytest.raises(RuntimeError, match="argument 'padding_mask' must be left at None"):
        call(padding_mask=make(1))


def test_bad_mask_shape():
    with pytest.raises(
        RuntimeError, match=r"argument 'atten_mask' must be of shape .*\(8, 8\).*\(8, 9\)"
    ):
        call(atten_mask=make(8, 9, dtype=torch.bool))


def test_compressed_mask_of_another_shape():
    with pytest.raises(
        RuntimeError, match=r"argument 'atten_mask' must be of shape \(2048, 2048\)"
    ):
        call(atten_mask=make(8, 8, dtype=torch.bool), sparse_mode=2)


def test_compressed_mask_of_other_values():
    mask = TRIANGLE.npu()
    call(atten_mask=mask, sparse_mode=2)
    mask[3, 4] = False
    with pytest.raises(RuntimeError, match="argument 'atten_mask' must be the compressed triangle"):
        call(atten_mask=mask, sparse_mode=2)


def test_compressed_mask_that_a_graph_sees_first():
    _masks.compressed.cache_clear()
    with FakeTensorMode():
        call(atten_mask=make(2048, 2048, dtype=torch.bool), sparse_mode=2)
    call(atten_mask=TRIANGLE.npu(), sparse_mode=2)


def test_modes_of_tnd_alone():
    with pytest.raises(RuntimeError, match="argument 'sparse_mode' must be 0, 1"):
        call(sparse_mode=7, atten_mask=TRIANGLE.npu())


def test_tnd_without_lengths():
    with pytest.raises(
        RuntimeError, match="argument 'actual_seq_qlen' must be given in input_layout TND"
    ):
        call((8, 2, 16), layout="TND")


def test_tnd_with_falling_lengths():
    with pytest.raises(
        RuntimeError, match="argument 'actual_seq_kvlen' must be cumulative lengths"
    ):
        call((8, 2, 16), layout="TND", actual_seq_qlen=[4, 8], actual_seq_kvlen=[8, 4])


def test_prefix_out_of_range():
    with pytest.raises(RuntimeError, match=r"argument 'prefix' must be from 4 to 12.*\[3\]"):
        call(kv_shape=(1, 2, 12, 16), sparse_mode=6, atten_mask=PREFIX_MASK.npu(), prefix=[3])


def test_softmax_layout_of_tnd_alone():
    with pytest.raises(RuntimeError, match="argument 'softmax_layout' must be ''"):
        call(softmax_layout="TND")


def test_bad_pse_shape():
    with pytest.raises(RuntimeError, match="argument 'pse' must be of shape"):
        call(pse=make(1, 2, 8, 9))


def test_bad_sink():
    with pytest.raises(RuntimeError, match=r"argument 'sink' must be of shape \(2\)"):
        call(sink=make(3))


def test_bad_dropout_mask():
    with pytest.raises(RuntimeError, match=r"argument 'dropout_mask' must be of at least 16 bytes"):
        call(keep_prob=0.5, dropout_mask=make(4, dtype=torch.uint8, low=0, high=9))


def test_gradient_without_statistics():
    q = make(1, 2, 8, 16)
    with pytest.raises(
        RuntimeError, match="npu_fusion_attention_grad: argument 'softmax_max' must be given"
    ):
        torch_npu.npu_fusion_attention_grad(q, q, q, q, 2, "BNSD")


def test_chips_that_do_not_train():
    with (
        on("310P"),
        pytest.raises(RuntimeError, match=r"argument 'query' must be on a chip that trains.*310P"),
    ):
        call()
