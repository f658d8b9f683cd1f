"""npu_fusion_attention where upstream's host code takes more or less than its page says, against fp64."""

import pytest
import torch

import torch_npu
from tests.ops.attention.fusion_reference import TRIANGLE, attend
from tests.ops.families import on
from tests.ops.support import make

Q_ENDS, KV_ENDS = [4, 9], [5, 12]


def call(q, k, heads, layout="BNSD", **options):
    return torch_npu.npu_fusion_attention(q, k, k, heads, layout, scale=0.3, **options)


def close(found, wanted):
    torch.testing.assert_close(found.detach().cpu().double(), wanted, rtol=1e-5, atol=1e-5)


def test_mask_of_all_rows_of_tnd():
    """(all Sq, all Skv): each sequence has its own part, in the gradient too."""
    q, k = make(9, 2, 8, seed=1).requires_grad_(), make(12, 2, 8, seed=2)
    mask = make(9, 12, dtype=torch.bool, seed=3)
    mask[:, ::5] = False
    out = call(q, k, 2, "TND", actual_seq_qlen=Q_ENDS, actual_seq_kvlen=KV_ENDS, atten_mask=mask)[0]
    out.sum().backward()
    exact = q.detach().cpu().double().requires_grad_()
    keys, hidden = k.cpu().double(), mask.cpu()
    parts = []
    for rows, columns in ((slice(0, 4), slice(0, 5)), (slice(4, 9), slice(5, 12))):
        part = (exact[rows], keys[columns], keys[columns])
        found = attend(*(x.transpose(0, 1) for x in part), 0.3, mask=hidden[rows, columns])
        parts.append(found[0].transpose(0, 1))
    want = torch.cat(parts)
    close(out, want)
    close(q.grad, torch.autograd.grad(want.sum(), exact)[0])


def test_mask_of_another_shape_in_tnd():
    with pytest.raises(RuntimeError, match=r"atten_mask' must be of shape \(max Sq.*\(6, 7\)"):
        call(
            make(9, 2, 8), make(12, 2, 8), 2, "TND", actual_seq_qlen=Q_ENDS,
            actual_seq_kvlen=KV_ENDS, atten_mask=make(6, 7, dtype=torch.bool),
        )  # fmt: skip


def test_many_heads():
    q = make(1, 300, 2, 8)
    part = q[0].cpu().double()
    close(call(q, q, 300)[0][0], attend(part, part, part, 0.3)[0])


@pytest.mark.parametrize("q_shape,kv_shape", [((1, 2, 0, 8), (1, 2, 4, 8)), ((0, 2, 4, 8),) * 2])
def test_no_queries(q_shape, kv_shape):
    out, peak, *_ = call(make(*q_shape), make(*kv_shape), 2)
    assert out.shape == q_shape and peak.shape == (*q_shape[:3], 8)


def test_no_keys():
    q, k = make(1, 2, 4, 8).requires_grad_(), make(1, 2, 0, 8).requires_grad_()
    out, peak, total, *_ = call(q, k, 2)
    assert not out.any() and not peak.any() and not total.any()
    out.sum().backward()
    assert not q.grad.any() and k.grad.shape == k.shape


def test_pse_of_one_batch_and_one_row():
    q, pse = make(2, 2, 4, 8, seed=1), make(1, 2, 1, 4, seed=2)
    out = call(q, q, 2, pse=pse)[0]
    for b in range(2):
        x, bias = q[b].cpu().double(), 0.3 * pse[0].cpu().double()
        close(out[b], attend(x, x, x, 0.3, bias=bias)[0])


def test_longer_dropout_mask():
    q = make(1, 2, 8, 8)
    bits = make(2, 20, dtype=torch.uint8, low=0, high=255, seed=4)
    out = call(q, q, 2, keep_prob=0.5, dropout_mask=bits)[0]
    keep = (bits.cpu().flatten()[:16, None] >> torch.arange(8)).bitwise_and(1).view(2, 8, 8)
    x = q[0].cpu().double()
    close(out[0], attend(x, x, x, 0.3, keep=keep, keep_prob=0.5)[0])


def test_prefix_mode_without_prefix_is_the_mask():
    q = make(2, 2, 4, 8)
    mask = torch.ones(4, 4, dtype=torch.bool).triu(2).npu()
    out = call(q, q, 2, sparse_mode=5, atten_mask=mask)[0]
    for b in range(2):
        x = q[b].cpu().double()
        close(out[b], attend(x, x, x, 0.3, mask=mask.cpu())[0])


def test_lengths_that_nobody_reads():
    q = make(1, 2, 4, 8)
    assert torch.equal(call(q, q, 2, actual_seq_qlen=[4])[0], call(q, q, 2)[0])
    with pytest.raises(RuntimeError, match="'actual_seq_qlen' must be given in input_layout TND"):
        call(q, q, 2, actual_seq_qlen=[4], actual_seq_kvlen=[4])


@pytest.mark.parametrize(
    "mode,tokens,message",
    [
        (0, (-9, 20), "'pre_tockens' must be such that the band of 4 rows and 8 columns"),
        (0, (20, -4), "'next_tockens' must be such that the band of 4 rows and 8 columns"),
        (4, (-1, 9), None),
        (4, (-20, 30), "'pre_tockens' must be such that"),
    ],
)
def test_band_outside_of_the_scores(mode, tokens, message):
    q, k = make(1, 2, 4, 8), make(1, 2, 8, 8)
    mask = TRIANGLE if mode == 4 else torch.zeros(4, 8, dtype=torch.bool)
    options = {"pre_tockens": tokens[0], "next_tockens": tokens[1], "sparse_mode": mode}
    if message is None:
        out = call(q, k, 2, atten_mask=mask.npu(), **options)[0]
        i, j = torch.arange(4)[:, None], torch.arange(8)
        far = (j - 8) - (i - 4)
        x, y = q[0].cpu().double(), k[0].cpu().double()
        close(out[0], attend(x, y, y, 0.3, mask=(far < 1) | (far > 9))[0])
        return
    with pytest.raises(RuntimeError, match=message):
        call(q, k, 2, atten_mask=mask.npu(), **options)


@pytest.mark.parametrize(
    "mode,tokens,message",
    [
        (0, (3, -1), "'next_tockens' must be at least 0 in TND, but received -1"),
        (0, (-2, 1), r"'pre_tockens' must be at least Sq - Skv \(-1\), but received -2"),
        (3, (9, 9), r"'actual_seq_kvlen' must be such that no sequence has more queries \(5\)"),
        (4, (-1, 9), "'pre_tockens' must be at least 0 in TND"),
        (4, (9, -1), r"'next_tockens' must be at least Sq - Skv \(1\)"),
        (7, (9, 0), r"'actual_seq_kvlen' must be such that no sequence"),
        (8, (9, 0), None),
    ],
)
def test_bands_of_tnd(mode, tokens, message):
    q, k = make(9, 2, 8), make(9, 2, 8)
    mask = torch.zeros(5, 5, dtype=torch.bool) if mode == 0 else TRIANGLE
    options = {"pre_tockens": tokens[0], "next_tockens": tokens[1], "sparse_mode": mode}
    options |= {"actual_seq_qlen": Q_ENDS, "actual_seq_kvlen": [5, 9], "atten_mask": mask.npu()}
    if message is None:
        assert call(q, k, 2, "TND", **options)[0].shape == q.shape
        return
    with pytest.raises(RuntimeError, match=message):
        call(q, k, 2, "TND", **options)


@pytest.mark.family("A2")
def test_pse_type_without_pse():
    q = make(1, 2, 4, 8)

    def typed(pse_type):
        return torch_npu.npu_fusion_attention_v2(q, q, q, 2, "BNSD", pse_type=pse_type)

    with pytest.raises(RuntimeError, match="argument 'pse_type' must be 1, but received 0"):
        typed(0)
    with on("A5"):
        assert torch.equal(typed(0)[0], typed(1)[0])


@pytest.mark.family("A2")
def test_slopes_ask_for_equal_lengths():
    q, k, slopes = make(1, 2, 4, 8), make(1, 2, 6, 8), make(2)
    with pytest.raises(RuntimeError, match="argument 'key' must be of the length of 'query'"):
        torch_npu.npu_fusion_attention_v2(q, k, k, 2, "BNSD", pse=slopes, pse_type=2)


def test_rope_sizes_of_ascend950():
    q, rope = make(4, 2, 128, dtype=torch.bfloat16), make(4, 2, 32, dtype=torch.bfloat16)
    with on("A5"), pytest.raises(RuntimeError, match="'query_rope' must be of size 64 beside a"):
        torch_npu.npu_fusion_attention_v2(
            q, q, q, 2, "TND", query_rope=rope, key_rope=rope, actual_seq_qlen=[4],
            actual_seq_kvlen=[4],
        )  # fmt: skip


def test_rope_asks_for_a_mask_and_bfloat16():
    q, rope = make(4, 2, 8), make(4, 2, 4)
    lengths = {"actual_seq_qlen": [4], "actual_seq_kvlen": [4]}

    def roped(q, rope):
        return torch_npu.npu_fusion_attention_v2(
            q, q, q, 2, "TND", query_rope=rope, key_rope=rope, **lengths
        )

    with pytest.raises(RuntimeError, match="argument 'query_rope' must be of dtype torch.bfloat16"):
        roped(q, rope)
    with pytest.raises(RuntimeError, match="argument 'atten_mask' must be given with query_rope"):
        roped(q.bfloat16(), rope.bfloat16())
