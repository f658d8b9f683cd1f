"""npu_nsa_compress_attention_infer against fp64 loops over pages."""

import math

import pytest
import torch

import torch_npu
from tests.ops.nsa import reference
from tests.ops.support import assert_accurate, make

SIZE, STRIDE, BLOCK, PAGE, SCALE = 32, 16, 64, 32, 0.2


def run(layout, counts, lengths, originals, dtype, count=4):
    rows = sum(counts) if layout == "TND" else None
    batch = len(lengths)
    shape = (rows, 4, 16) if layout == "TND" else (batch, max(counts), 4, 16)
    q = make(*shape, dtype=dtype)
    k, v = make(9, PAGE, 2 * 16, dtype=dtype), make(9, PAGE, 2 * 8, dtype=dtype, seed=5)
    table = torch.tensor([[3, 0, 7], [8, 2, 1]], dtype=torch.int32)[:batch]
    several = originals is not None
    out, chosen = torch_npu.npu_nsa_compress_attention_infer(
        q, k, v, SCALE, 4, 2, BLOCK, count, PAGE, SIZE, STRIDE, layout=layout, block_table=table.npu(),
        actual_seq_qlen=counts if several else None, actual_cmp_seq_kvlen=lengths, actual_sel_seq_kvlen=originals,
    )  # fmt: skip
    flat = q.cpu().double().reshape(-1, 4, 16)
    got, picked = out.cpu().reshape(-1, 4, 8), chosen.cpu().reshape(-1, 2, count)
    row = 0
    for b, length in enumerate(lengths):
        keys = reference.pages(k.cpu().double(), table[b], length).unflatten(1, (2, 16))
        values = reference.pages(v.cpu().double(), table[b], length).unflatten(1, (2, 8))
        covered = (length - 1) * STRIDE + SIZE
        blocks = math.ceil(covered / BLOCK)
        row = sum(counts[:b]) if layout == "TND" else b * max(counts)
        for t in range(counts[b]):
            marks = torch.zeros(2, blocks, dtype=torch.float64)
            for n in range(4):
                hidden = torch.zeros(length).bool()
                if several and counts[b] - t - 1 > originals[b] - covered:
                    hidden[-1] = True
                y, p, _, _ = reference.attend(
                    flat[row + t, n], keys[:, n // 2], values[:, n // 2], SCALE, hidden
                )
                assert_accurate(got[row + t, n], y, y.to(dtype))
                marks[n // 2] += reference.block_weight(p, blocks, BLOCK // STRIDE, SIZE // STRIDE)
            for g in range(2):
                mine = picked[row + t, g].tolist()
                assert mine[:3] == [0, blocks - 2, blocks - 1]
                rest = sorted(marks[g, 1 : blocks - 2].tolist(), reverse=True)[: count - 3]
                torch.testing.assert_close(marks[g][mine[3:]].tolist(), rest, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout", ["TND", "BSND"])
def test_one_token_a_sequence(layout, dtype):
    run(layout, [1, 1], [60, 35], None, dtype)


@pytest.mark.parametrize("layout", ["TND", "BSND"])
def test_several_tokens_a_sequence(layout):
    # 60 compressed keys cover 976: with 977 keys the last of 3 tokens sees the last compressed key, as the one before
    run(layout, [3, 3], [60, 35], [977, 576], torch.float16)


def test_lengths_that_do_not_fit_mean_one_token():
    q = make(2, 4, 16, dtype=torch.float16)
    k, v = make(9, PAGE, 32, dtype=torch.float16), make(9, PAGE, 16, dtype=torch.float16)
    table = torch.zeros(2, 3, dtype=torch.int32).npu()
    sizes = (SCALE, 4, 2, BLOCK, 3, PAGE, SIZE, STRIDE)
    more = {"block_table": table, "actual_cmp_seq_kvlen": [60, 35]}
    plain = torch_npu.npu_nsa_compress_attention_infer(q, k, v, *sizes, **more)
    odd = torch_npu.npu_nsa_compress_attention_infer(
        q, k, v, *sizes, **more, actual_seq_qlen=[2, 5], actual_sel_seq_kvlen=[977, 576]
    )
    assert all(torch.equal(a, b) for a, b in zip(plain, odd, strict=True))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layout": "BSH"}, "'layout' must be 'TND' or 'BSND'.*layout only support TND or BSND now"),
        ({"page_block_size": 24}, "'page_block_size' must be a multiple of 16"),
        ({"block_table": None}, "'block_table' must be given"),
        ({"actual_cmp_seq_kvlen": [200]}, "'actual_cmp_seq_kvlen' must be at most 96"),
        ({"select_block_count": 20}, r"'select_block_count' must be in \[1, 16\]"),
        ({"key_value_head_num": 3}, "'key_value_head_num' must be dividing 4"),
        ({"query": make(2, 4, 16, dtype=torch.float16)}, "'query' must be of 1 rows.*2"),
    ],
)  # fmt: skip
def test_refusals(changes, message):
    given = {
        "query": make(1, 4, 16, dtype=torch.float16),
        "key": make(9, PAGE, 32, dtype=torch.float16),
        "value": make(9, PAGE, 16, dtype=torch.float16),
        "scale_value": SCALE,
        "head_num": 4,
        "key_value_head_num": 2,
        "select_block_size": BLOCK,
        "select_block_count": 3,
        "page_block_size": PAGE,
        "compress_block_size": SIZE,
        "compress_stride": STRIDE,
        "block_table": torch.zeros(1, 3, dtype=torch.int32).npu(),
        "actual_cmp_seq_kvlen": [60],
    }
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_nsa_compress_attention_infer(**{**given, **changes})
