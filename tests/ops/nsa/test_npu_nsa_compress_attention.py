"""npu_nsa_compress_attention: attention, chosen blocks, statistics and gradients against fp64 loops."""

import pytest
import torch

import torch_npu
from tests.ops.nsa import reference
from tests.ops.support import assert_accurate, gradcheck, make

Q_ENDS, KV_ENDS = [3, 12], [7, 20]
SCALE = 0.3


def expected(q, k, v, mask, topk_mask, sizes, count):
    """out (T, N, Dv), the blocks' weights per row and head of key, largest and sum by sequence, head and row."""
    size, stride, block = sizes
    step, overlap = block // stride, size // stride
    heads, group = k.shape[1], q.shape[1] // k.shape[1]
    out = torch.zeros(*q.shape[:2], v.shape[2], dtype=q.dtype)
    marks, stats = {}, [[], []]
    for (q0, q1), (k0, k1) in zip(reference.spans(Q_ENDS), reference.spans(KV_ENDS), strict=True):
        blocks = -(-(k1 - k0) // step)
        for n in range(q.shape[1]):
            for i in range(q0, q1):
                hidden = None if mask is None else mask[i - q0, : k1 - k0].bool()
                g = n // group
                y, p, top, total = reference.attend(
                    q[i, n], k[k0:k1, g], v[k0:k1, g], SCALE, hidden
                )
                out[i, n] = y
                stats[0].append(top)
                stats[1].append(total)
                w = reference.block_weight(p, blocks, step, overlap, int(overlap == 1))
                marks[i, g] = marks.get((i, g), 0) + w
    if topk_mask is not None:
        for (q0, q1), (k0, k1) in zip(
            reference.spans(Q_ENDS), reference.spans(KV_ENDS), strict=True
        ):
            blocks = -(-(k1 - k0) // step)
            for i in range(q0, q1):
                for g in range(heads):
                    marks[i, g] = marks[i, g].masked_fill(topk_mask[i - q0, :blocks].bool(), 9e9)
    return out, marks, [torch.stack(s) for s in stats]


@pytest.mark.parametrize("sizes", [(32, 16, 64), (16, 16, 32), (64, 16, 64), (32, 32, 32)])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_attention_and_choice(sizes, masked, dtype):
    size, stride, block = sizes
    step = block // stride
    q, k, v = (
        make(12, 4, 16, dtype=dtype),
        make(20, 2, 16, dtype=dtype),
        make(20, 2, 8, dtype=dtype),
    )
    blocks = [-(-7 // step), -(-7 // step) + -(-13 // step)]
    count = min(2, blocks[0])
    mask = torch.ones(9, 13).triu(3).bool() if masked else None
    if masked:
        mask[1] = True  # a row that sees nothing weighs all alike
    forced = torch.zeros(9, 13).bool() if masked else None
    if masked:
        forced[:, 0] = True
    more = (
        {}
        if mask is None
        else {"atten_mask": mask.npu(), "topk_mask": forced.to(torch.uint8).npu()}
    )
    out, chosen, peak, total = torch_npu.npu_nsa_compress_attention(
        q, k, v, SCALE, 4, size, stride, block, count, actual_seq_qlen=Q_ENDS, actual_cmp_seq_kvlen=KV_ENDS,
        actual_sel_seq_kvlen=blocks, **more,
    )  # fmt: skip
    wide = [t.cpu().double() for t in (q, k, v)]
    want, marks, stats = expected(*wide, mask, forced, sizes, count)
    assert_accurate(out, want, want.to(dtype))
    assert chosen.dtype == torch.int32 and chosen.shape == (12, 2, count)
    for (i, g), scores in marks.items():
        best = scores.sort(descending=True).values[:count]
        torch.testing.assert_close(scores[chosen[i, g].cpu().long()], best, rtol=1e-5, atol=1e-6)
        assert len(set(chosen[i, g].tolist())) == count
    for got, right in ((peak, stats[0]), (total, stats[1])):
        assert got.shape == (12, 4, 8) and got.dtype == torch.float32
        flat = got.cpu().double().view(-1, 8)
        visible = right > -1e38
        torch.testing.assert_close(
            flat[visible], right[visible, None].expand(-1, 8), rtol=1e-5, atol=1e-5
        )


def test_ties_choose_the_first_blocks():
    q, k = torch.zeros(1, 1, 16).half().npu(), torch.zeros(16, 1, 16).half().npu()
    out = torch_npu.npu_nsa_compress_attention(
        q,
        k,
        k,
        1.0,
        1,
        16,
        16,
        64,
        3,
        actual_seq_qlen=[1],
        actual_cmp_seq_kvlen=[16],
        actual_sel_seq_kvlen=[4],
    )
    assert out[1].flatten().tolist() == [0, 1, 2]


def test_gradcheck():
    q, k = (make(n, 2, 4, dtype=torch.float64, requires_grad=True, seed=n) for n in (5, 8))
    v = make(8, 2, 4, dtype=torch.float64, requires_grad=True, seed=1)
    mask = torch.ones(5, 8).triu(2).bool().npu()

    def run(q, k, v):
        return torch_npu.npu_nsa_compress_attention(
            q, k, v, 0.5, 2, 32, 16, 64, 1, atten_mask=mask, actual_seq_qlen=[5], actual_cmp_seq_kvlen=[8],
            actual_sel_seq_kvlen=[2],
        )[0]  # fmt: skip

    gradcheck(run, q, k, v)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_num": 3}, r"'head_num' must be the heads of query \(2\).*3"),
        ({"select_block_size": 16}, "'select_block_size' must be a multiple of 16 from 32 on.*16"),
        ({"compress_stride": 80}, "'compress_stride' must be a multiple of 16 up to 32.*80"),
        ({"select_block_count": 33}, r"'select_block_count' must be in \[1, 32\].*33"),
        ({"select_block_count": 3}, r"'select_block_count' must be at most the fewest blocks \(2\).*3"),
        ({"actual_sel_seq_kvlen": [3]}, r"'actual_sel_seq_kvlen' must be \[2\]"),
        ({"actual_seq_qlen": None}, "'actual_seq_qlen' must be given"),
        ({"atten_mask": torch.zeros(2, 8).bool()}, r"'atten_mask' must be of shape \(5, 8\)"),
        ({"topk_mask": torch.zeros(5, 2)}, "'topk_mask' must be of dtype torch.bool or torch.uint8"),
    ],
)  # fmt: skip
def test_refusals(changes, message):
    given = {
        "query": make(5, 2, 16, dtype=torch.float16),
        "key": make(8, 1, 16, dtype=torch.float16),
        "value": make(8, 1, 16, dtype=torch.float16),
        "scale_value": 1.0,
        "head_num": 2,
        "compress_block_size": 32,
        "compress_stride": 16,
        "select_block_size": 64,
        "select_block_count": 1,
        "actual_seq_qlen": [5],
        "actual_cmp_seq_kvlen": [8],
        "actual_sel_seq_kvlen": [2],
    }
    changes = {k: v.npu() if isinstance(v, torch.Tensor) else v for k, v in changes.items()}
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_nsa_compress_attention(**{**given, **changes})


def test_rows_behind_the_last_sequence():
    """They belong to none: the others are as without them."""
    half = torch.float16
    q, k, v = make(9, 4, 16, dtype=half), make(12, 2, 16, dtype=half), make(12, 2, 8, dtype=half)

    def call(rows, keys):
        return torch_npu.npu_nsa_compress_attention(
            q[:rows], k[:keys], v[:keys], SCALE, 4, 32, 16, 32, 2, actual_seq_qlen=[7],
            actual_cmp_seq_kvlen=[10], actual_sel_seq_kvlen=[5],
        )  # fmt: skip

    longer, exact = call(9, 12), call(7, 10)
    assert torch.equal(longer[0][:7], exact[0]) and torch.equal(longer[1][:7], exact[1])
    assert not longer[0][7:].any()
    assert torch.equal(longer[2].flatten()[: exact[2].numel()], exact[2].flatten())
