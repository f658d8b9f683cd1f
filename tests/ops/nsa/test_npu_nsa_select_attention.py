"""npu_nsa_select_attention and its gradient against fp64 loops."""

import pytest
import torch

import torch_npu
from tests.ops.nsa import reference
from tests.ops.support import assert_accurate, gradcheck, make

Q_ENDS, KV_ENDS, SCALE = [20, 64], [48, 112], 0.3


def choice(rows, heads, blocks, count):
    g = torch.Generator().manual_seed(7)
    picked = [torch.randperm(blocks, generator=g)[:count] for _ in range(rows * heads)]
    return torch.stack(picked).view(rows, heads, count).int()


def expected(q, k, v, chosen, size, masked):
    """out, largest and sum, by loops; differentiable."""
    group, rows, tops, totals = q.shape[1] // k.shape[1], [], [], []
    for (q0, q1), (k0, k1) in zip(reference.spans(Q_ENDS), reference.spans(KV_ENDS), strict=True):
        for i in range(q0, q1):
            for n in range(q.shape[1]):
                blocks = chosen[i, n // group].tolist()
                at = [b * size + j for b in blocks for j in range(size)]
                hidden = torch.tensor([p > i - q0 for p in at]) if masked else None
                keys, values = k[k0:k1, n // group][at], v[k0:k1, n // group][at]
                y, _, top, total = reference.attend(q[i, n], keys, values, SCALE, hidden)
                rows.append(y)
                tops.append(top)
                totals.append(total)
    shape = q.shape[:2]
    return (
        torch.stack(rows).view(*shape, -1),
        torch.stack(tops).view(shape),
        torch.stack(totals).view(shape),
    )


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_attention(masked, dtype):
    q, k, v = (
        make(64, 4, 32, dtype=dtype),
        make(112, 2, 32, dtype=dtype),
        make(112, 2, 16, dtype=dtype),
    )
    chosen = choice(64, 2, 3, 2)
    mask = {"atten_mask": torch.zeros(44, 64).bool().npu()} if masked else {}
    out, peak, total = torch_npu.npu_nsa_select_attention(
        q,
        k,
        v,
        chosen.npu(),
        SCALE,
        4,
        16,
        2,
        actual_seq_qlen=Q_ENDS,
        actual_seq_kvlen=KV_ENDS,
        **mask,
    )
    wide = [t.cpu().double() for t in (q, k, v)]
    want, top, summed = expected(*wide, chosen, 16, masked)
    assert_accurate(out, want, want.to(dtype))
    seen = top > -1e38
    assert bool(seen.all()) != masked  # rows whose blocks lie beyond them weigh all alike
    torch.testing.assert_close(peak.cpu().double()[seen][:, 0], top[seen], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(total.cpu().double()[..., 7], summed, rtol=1e-5, atol=1e-5)


def causal_gradients(q, k, v, dy, chosen, size, masked):
    """dq, dk and dv by loops: the weights of the forward, later keys left out with and without a mask."""
    group = q.shape[1] // k.shape[1]
    grads = [torch.zeros_like(t) for t in (q, k, v)]
    for (q0, q1), (k0, k1) in zip(reference.spans(Q_ENDS), reference.spans(KV_ENDS), strict=True):
        for i in range(q0, q1):
            for n in range(q.shape[1]):
                head = n // group
                at = [b * size + j for b in chosen[i, head].tolist() for j in range(size)]
                later = torch.tensor([p > i - q0 for p in at])
                keys, values = k[k0:k1, head][at], v[k0:k1, head][at]
                scores = keys @ q[i, n] * SCALE
                weights = scores.masked_fill(later & masked, -torch.inf).softmax(0)
                inner = (weights @ values) @ dy[i, n]
                weights = weights.masked_fill(later, 0)
                ds = weights * (values @ dy[i, n] - inner) * SCALE
                grads[0][i, n] = ds @ keys
                for m, p in enumerate(at):
                    grads[1][k0 + p, head] += ds[m] * q[i, n]
                    grads[2][k0 + p, head] += weights[m] * dy[i, n]
    return grads


@pytest.mark.parametrize("masked", [True, False])
def test_gradients(masked):
    dtype = torch.float16
    q, k, v = (
        make(64, 4, 32, dtype=dtype),
        make(112, 2, 32, dtype=dtype),
        make(112, 2, 16, dtype=dtype),
    )
    chosen = choice(64, 2, 3, 2)
    chosen[..., 0] = 0  # the first block is always chosen, so that every row sees a key
    chosen[..., 1] = chosen[..., 1].clamp(min=1)
    mask = {"atten_mask": torch.zeros(44, 64).bool().npu()} if masked else {}
    given = [t.clone().requires_grad_() for t in (q, k, v)]
    out = torch_npu.npu_nsa_select_attention(
        *given,
        chosen.npu(),
        SCALE,
        4,
        16,
        2,
        actual_seq_qlen=Q_ENDS,
        actual_seq_kvlen=KV_ENDS,
        **mask,
    )[0]
    dy = make(*out.shape, dtype=dtype)
    out.backward(dy)
    wide = [t.cpu().double() for t in (q, k, v, dy)]
    want = causal_gradients(*wide, chosen, 16, masked)
    for got, right in zip(given, want, strict=True):
        assert got.grad.dtype == dtype
        torch.testing.assert_close(got.grad.cpu().double(), right, rtol=4e-3, atol=4e-3)


def test_gradcheck():
    q = make(5, 2, 4, dtype=torch.float64, requires_grad=True)
    k, v = (make(48, 1, n, dtype=torch.float64, requires_grad=True, seed=n) for n in (4, 3))
    chosen = choice(5, 1, 3, 2).npu()
    mask = torch.zeros(5, 48).bool().npu()
    chosen[..., 0], chosen[..., 1] = 0, 1

    def run(q, k, v):
        return torch_npu.npu_nsa_select_attention(
            q,
            k,
            v,
            chosen,
            0.5,
            2,
            16,
            2,
            atten_mask=mask,
            actual_seq_qlen=[5],
            actual_seq_kvlen=[48],
        )[0]

    gradcheck(run, q, k, v)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"select_block_size": 24}, "'select_block_size' must be a multiple of 16 up to 128.*24"),
        ({"select_block_count": 129}, r"'select_block_count' must be in \[1, 128\].*129"),
        ({"select_block_size": 128, "select_block_count": 64}, "'select_block_count' must be of fewer than 8192"),
        ({"actual_seq_kvlen": [40, 64]}, "'actual_seq_kvlen' must be of 1 sequences"),
        ({"actual_seq_kvlen": None}, "'actual_seq_kvlen' must be given"),
        ({"topk_indices": torch.full((5, 1, 2), 4).int()}, r"'topk_indices' must be of blocks in \[0, 4\)"),
        ({"topk_indices": torch.zeros(5, 2, 2).int()}, r"'topk_indices' must be of shape \(5, 1, 2\)"),
        ({"head_num": 4}, "'head_num' must be the heads of query"),
        ({"value": make(64, 1, 48, dtype=torch.float16)}, "'value' must be of width up to 16.*48"),
    ],
)  # fmt: skip
def test_refusals(changes, message):
    given = {
        "query": make(5, 2, 16, dtype=torch.float16),
        "key": make(64, 1, 16, dtype=torch.float16),
        "value": make(64, 1, 16, dtype=torch.float16),
        "topk_indices": torch.zeros(5, 1, 2).int(),
        "scale_value": 1.0,
        "head_num": 2,
        "select_block_size": 16,
        "select_block_count": 2,
        "actual_seq_qlen": [5],
        "actual_seq_kvlen": [64],
    }
    merged = {**given, **changes}
    merged = {k: v.npu() if isinstance(v, torch.Tensor) else v for k, v in merged.items()}
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_nsa_select_attention(**merged)


def test_gradient_refuses_other_statistics():
    q, k = make(5, 2, 16, dtype=torch.float16), make(64, 1, 16, dtype=torch.float16)
    with pytest.raises(RuntimeError, match=r"'softmax_max' must be of shape \(5, 2, 8\)"):
        torch_npu.npu_nsa_select_attention_grad(
            q, q, k, k, q, make(5, 2, 4), make(5, 2, 8), torch.zeros(5, 1, 2).int().npu(), 1.0, 2, 16, 2,
            actual_seq_qlen=[5], actual_seq_kvlen=[64],
        )  # fmt: skip


def test_rows_behind_the_last_sequence():
    """They belong to none: the others are as without them, in both directions."""
    half = torch.float16
    q, k = make(7, 2, 16, dtype=half), make(48, 1, 16, dtype=half, seed=1)
    chosen = make(7, 1, 2, dtype=torch.int32, low=0, high=2)
    found = []
    for rows, keys in ((7, 48), (5, 32)):
        own = [t.detach().requires_grad_() for t in (q[:rows], k[:keys])]
        out, *_ = torch_npu.npu_nsa_select_attention(
            own[0], own[1], own[1], chosen[:rows], 0.25, 2, 16, 2,
            actual_seq_qlen=[5], actual_seq_kvlen=[32],
        )  # fmt: skip
        out.sum().backward()
        found.append([out, *(t.grad for t in own)])
    for longer, exact in zip(*found, strict=True):
        assert torch.equal(longer[: exact.shape[0]], exact) and not longer[exact.shape[0] :].any()
