"""The three operators of the cross-entropy over a split vocabulary against fp64."""

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.support import assert_accurate, make, max_error


def inputs(tokens=11, width=32, rows=24, words=48, dtype=torch.bfloat16, index=torch.int64):
    x, w = make(tokens, width, dtype=dtype), make(rows, width, dtype=dtype)
    return x, w, make(tokens, dtype=index, low=0, high=words)


def bits(flags, fill=1):
    """Eight flags a byte, lowest first."""
    flags = [int(f) for f in flags] + [fill] * (-len(flags) % 8)
    return [sum(f << i for i, f in enumerate(flags[k : k + 8])) for k in range(0, len(flags), 8)]


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("tokens", [1, 8, 11])
def test_online_max_sum(tokens, dtype, index):
    x, w, target = inputs(tokens, dtype=dtype, index=index)
    start, end = 12, 36
    got = torch_npu.npu_fused_linear_online_max_sum(x, w, target, start, end, True)
    largest, total, chosen, mask, local, logits = (g.cpu() for g in got)
    exact = x.cpu().double() @ w.cpu().double().t()
    assert logits.dtype == dtype and local.dtype == index and mask.dtype == torch.uint8
    assert_accurate(logits, exact, exact.to(dtype))
    z = logits.double()
    m = z.max(-1).values
    assert largest.dtype == total.dtype == chosen.dtype == torch.float32
    assert max_error(largest, m) == 0
    assert max_error(total, (z - m[:, None]).exp().sum(-1)) < 1e-5
    outside = [not start <= t < end for t in target.tolist()]
    assert mask.tolist() == bits(outside)
    assert local.tolist() == [0 if o else t - start for t, o in zip(target.tolist(), outside)]
    want = [0.0 if o else float(z[b, i] - m[b]) for b, (i, o) in enumerate(zip(local, outside))]
    assert max_error(chosen, torch.tensor(want)) < 1e-6


def test_the_end_is_outside():
    x, w, _ = inputs(2)
    target = torch.tensor([23, 24]).to(x.device)
    _, _, _, mask, local, _ = torch_npu.npu_fused_linear_online_max_sum(x, w, target, 0, 24)
    assert mask.tolist() == [0b11111110] and local.tolist() == [23, 0]


def test_no_logits_by_default():
    x, w, target = inputs()
    short = torch_npu.npu_fused_linear_online_max_sum(x, w, target, 0, 24)
    whole = torch_npu.npu_fused_linear_online_max_sum(x, w, target, 0, 24, True)
    assert short[5] is None and whole[5].shape == (11, 24)
    assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(short[:5], whole[:5], strict=True))


def test_empty():
    x, w, target = inputs(0)
    got = torch_npu.npu_fused_linear_online_max_sum(x, w, target, 0, 24)
    assert [g.shape[0] for g in got[:5]] == [0] * 5


def test_split_equals_whole():
    """Two slices, reduced as Megatron does, give PyTorch's loss and gradients."""
    x, w, _ = inputs(rows=256, words=256)
    target = make(11, dtype=torch.int64, low=0, high=256)
    parts = [
        torch_npu.npu_fused_linear_online_max_sum(x, w[a : a + 128], target, a, a + 128, True)
        for a in (0, 128)
    ]
    largest = torch.maximum(parts[0][0], parts[1][0])
    total = sum(p[1] * (p[0] - largest).exp() for p in parts)
    chosen = 0
    for p, a in zip(parts, (0, 128), strict=True):
        inside = (target >= a) & (target < a + 128)
        chosen = chosen + (p[2] + p[0] - largest) * inside
    loss, nothing = torch_npu.npu_fused_cross_entropy_loss_with_max_sum(largest, total, chosen)
    assert nothing is None
    a, b = (t.cpu().double().requires_grad_() for t in (x, w))
    want = torch.nn.functional.cross_entropy(a @ b.t(), target.cpu(), reduction="none")
    assert max_error(loss, want) < 0.05
    grad = make(11, low=0.5)
    want.backward(grad.cpu().double())
    dx, dw = 0, []
    for p, s in zip(parts, (slice(0, 128), slice(128, 256)), strict=True):
        given = (grad, x, w[s], p[3], p[4], 0.0)
        one = torch_npu.npu_fused_linear_cross_entropy_loss_with_max_sum_backward(
            *given, logits_max=largest, sum_exp_logits=total
        )
        dx, dw = dx + one[0].double(), [*dw, one[1].double()]
    assert max_error(dx, a.grad) < 0.02 and max_error(torch.cat(dw), b.grad) < 0.02


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_loss_and_softmax(dtype):
    m, s, p = make(6, seed=1), make(6, low=1, high=5, seed=2), make(6, seed=3)
    z = make(6, 9, dtype=dtype)
    loss, softmax = torch_npu.npu_fused_cross_entropy_loss_with_max_sum(
        m, s, p, vocab_parallel_logits=z
    )
    md, sd, pd, zd = (t.cpu().double() for t in (m, s, p, z))
    assert loss.dtype == softmax.dtype == torch.float32
    assert max_error(loss, sd.log() - pd) < 1e-6
    assert max_error(softmax, (zd - md[:, None]).exp() / sd[:, None]) < 1e-6


def reference_backward(grad, x, w, outside, target, softmax, dtype):
    g = softmax.clone()
    for b, (o, t) in enumerate(zip(outside, target, strict=True)):
        if not o:
            g[b, t] -= 1
    g = (g * grad[:, None]).to(dtype).double()
    return g @ w, g.t() @ x


@pytest.mark.parametrize("given,size", [("softmax", 130), ("sums", 130), ("sums", 7)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("packed", [True, False])
def test_backward(dtype, given, size, packed):
    x, w = make(11, 16, dtype=dtype), make(size, 16, dtype=dtype)
    grad, target = make(11, seed=4), make(11, dtype=torch.int32, low=0, high=size)
    outside = [bool(i % 3 == 0) for i in range(11)]
    mask = torch.tensor(bits(outside), dtype=torch.uint8) if packed else torch.tensor(outside)
    mask = mask.to(x.device)
    z = x.cpu().double() @ w.cpu().double().t()
    m, s = z.max(-1).values, (z - z.max(-1).values[:, None]).exp().sum(-1)
    softmax = (z - m[:, None]).exp() / s[:, None]
    options = {"softmax": softmax.float().to(x.device)}
    if given == "sums":
        options = {"logits_max": m.float().to(x.device), "sum_exp_logits": s.float().to(x.device)}
    got = torch_npu.npu_fused_linear_cross_entropy_loss_with_max_sum_backward(
        grad, x, w, mask, target, **options
    )
    parts = (t.cpu().double() for t in (grad, x, w))
    want = reference_backward(*parts, outside, target.tolist(), softmax, dtype)
    for mine, theirs in zip(got, want, strict=True):
        assert mine.dtype == dtype
        assert_accurate(mine, theirs, theirs.to(dtype), slack=1e-5)


def test_refusals():
    x, w, target = inputs()
    run = torch_npu.npu_fused_linear_online_max_sum
    with pytest.raises(RuntimeError, match="'vocab_start_index' must be not negative.*-1"):
        run(x, w, target, -1, 3)
    with pytest.raises(RuntimeError, match=r"'vocab_end_index' must be at least vocab_start_index"):
        run(x, w, target, 5, 4)
    with pytest.raises(RuntimeError, match=r"'vocab_end_index' must be such that every target"):
        run(x, w, target, 0, 48)
    with pytest.raises(RuntimeError, match="'weight' must be of the dtype of 'input'"):
        run(x, w.half(), target, 0, 24)
    with pytest.raises(RuntimeError, match=r"'target' must be of shape \(11\)"):
        run(x, w, target[:4], 0, 24)
    with pytest.raises(RuntimeError, match="'weight' must be of at least 1 row"):
        run(x, w[:0], target, 0, 24)
    with on("A5"), pytest.raises(NotImplementedError, match="'device' must be of the family A2"):
        run(x, w, target, 0, 24)


def test_refusals_of_the_loss():
    run = torch_npu.npu_fused_cross_entropy_loss_with_max_sum
    m, s, p = make(6), make(6, low=1, high=2), make(6)
    with pytest.raises(RuntimeError, match="'label_smoothing' must be 0.0, but received 0.1"):
        run(m, s, p, label_smoothing=0.1)
    assert torch.equal(run(m, s, p, input=m, weight=m)[0].cpu(), run(m, s, p)[0].cpu())
    with pytest.raises(RuntimeError, match=r"'sum_exp_logits' must be of shape \(6\)"):
        run(m, s[:3], p)


def test_refusals_of_the_backward():
    run = torch_npu.npu_fused_linear_cross_entropy_loss_with_max_sum_backward
    x, w, g = make(4, 8).half(), make(128, 8).half(), make(4)
    mask, t = make(1, dtype=torch.uint8, low=0, high=9), make(4, dtype=torch.int32, low=0, high=9)
    with pytest.raises(RuntimeError, match="'logits_max' must be given without 'softmax'"):
        run(g, x, w, mask, t)
    with pytest.raises(RuntimeError, match=r"'weight' must be of 128 to 65280 rows.*\(64, 8\)"):
        run(g, x, w[:64], mask, t, softmax=make(4, 64))
    with pytest.raises(RuntimeError, match=r"'target_mask' must be of shape \(4\)"):
        run(g, x, w, mask.bool(), t, softmax=make(4, 128))
