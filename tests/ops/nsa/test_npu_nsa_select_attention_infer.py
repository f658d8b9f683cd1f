"""npu_nsa_select_attention_infer against fp64 loops over pages."""

import pytest
import torch

import torch_npu
from tests.ops.nsa import reference
from tests.ops.support import assert_accurate, make

SCALE, SIZE, PAGE = 0.1, 32, 64


def run(layout, counts, dtype, flat_cache=False):
    lengths, batch, heads, d, dv = [150, 70], 2, 2, 192, 128
    rows = sum(counts)
    most = max(counts)
    q = {
        "TND": lambda: make(rows, 4, d, dtype=dtype),
        "BSND": lambda: make(batch, most, 4, d, dtype=dtype),
        "BSH": lambda: make(batch, most, 4 * d, dtype=dtype),
    }[layout]()
    k, v = make(6, PAGE, heads, d, dtype=dtype), make(6, PAGE, heads, dv, dtype=dtype, seed=2)
    table = torch.tensor([[5, 0, 3], [4, 1, 2]], dtype=torch.int32)
    count, total = 3, rows if layout == "TND" else batch * most
    chosen = torch.full((total, heads, count), -1, dtype=torch.int32)
    g = torch.Generator().manual_seed(1)
    starts = [0, counts[0]] if layout == "TND" else [0, most]
    for b, length in enumerate(lengths):
        blocks = -(-length // SIZE)
        for t in range(counts[b]):
            for h in range(heads):
                some = 2 + (t + h) % 2
                chosen[starts[b] + t, h, :some] = torch.randperm(blocks, generator=g)[:some].int()
    given = (k.flatten(2), v.flatten(2)) if flat_cache else (k, v)
    out = torch_npu.npu_nsa_select_attention_infer(
        q, *given, chosen.npu(), SCALE, 4, heads, SIZE, count, PAGE, layout=layout, block_table=table.npu(),
        actual_seq_qlen=counts, actual_seq_kvlen=lengths,
    )  # fmt: skip
    expected_shape = {
        "TND": (rows, 4, dv),
        "BSND": (batch, most, 4, dv),
        "BSH": (batch, most, 4 * dv),
    }
    assert out.shape == expected_shape[layout] and out.dtype == dtype
    queries, got = q.cpu().double().reshape(-1, 4, d), out.cpu().reshape(-1, 4, dv)
    for b, length in enumerate(lengths):
        keys = reference.pages(k.cpu().double(), table[b], length)
        values = reference.pages(v.cpu().double(), table[b], length)
        for t in range(counts[b]):
            row, seen = starts[b] + t, length - (counts[b] - 1 - t)
            for n in range(4):
                blocks = [x for x in chosen[row, n // 2].tolist() if x >= 0]
                at = [x * SIZE + j for x in blocks for j in range(SIZE) if x * SIZE + j < seen]
                y = reference.attend(
                    queries[row, n], keys[at, n // 2], values[at, n // 2], SCALE, None
                )[0]
                assert_accurate(got[row, n], y, y.to(dtype))


@pytest.mark.parametrize("layout", ["TND", "BSND", "BSH"])
@pytest.mark.parametrize("counts", [[1, 1], [3, 2]])
def test_layouts_and_tokens(layout, counts):
    run(layout, counts, torch.float16, flat_cache=layout != "BSND")


def test_bfloat16():
    run("BSND", [4, 4], torch.bfloat16)


def test_a_row_that_chose_nothing_is_zero():
    q, k = make(1, 1, 2, 192, dtype=torch.float16), make(2, 64, 1, 192, dtype=torch.float16)
    out = torch_npu.npu_nsa_select_attention_infer(
        q, k, k[..., :128], torch.full((1, 1, 2), -1, dtype=torch.int32).npu(), 1.0, 2, 1, 32, 2, 64,
        block_table=torch.zeros(1, 1, dtype=torch.int32).npu(), actual_seq_kvlen=[40],
    )  # fmt: skip
    assert not out.any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layout": "BNSD"}, "'layout' must be .*layout only support BSH or BSND or TND now"),
        ({"page_block_size": 32}, "'page_block_size' must be 64 or 128.*32"),
        ({"select_block_size": 144}, "'select_block_size' must be a multiple of 16 up to 128"),
        ({"actual_seq_kvlen": None}, "'actual_seq_kvlen' must be given"),
        ({"actual_seq_kvlen": [65]}, "'actual_seq_kvlen' must be 1 lengths up to 64"),
        ({"actual_seq_qlen": [2]}, r"'actual_seq_qlen' must be 1 counts in \[1, 1\]"),
        ({"topk_indices": torch.full((1, 1, 2), 2).int()}, r"'topk_indices' must be in \[-1, 2\)"),
        ({"topk_indices": torch.zeros(1, 1, 3).int()}, "'topk_indices' must be of 1 rows, 1 heads and 2 blocks"),
        ({"query": make(1, 1, 2, 128, dtype=torch.float16)}, "'query' must be of head size 192"),
        ({"value": make(2, 64, 1, 64, dtype=torch.float16)}, r"'value' must be of shape \(2, 64, 1, 128\)"),
        ({"key": make(2, 64, 192, dtype=torch.float16)}, "'key' must be a tensor of 4 dimensions"),
        ({"actual_seq_qlen": [1], "actual_seq_kvlen": [0]}, r"'actual_seq_qlen' must be at most \[0\], the keys"),
        ({"key_value_head_num": 0}, "'key_value_head_num' must be a divisor of 2"),
    ],
)  # fmt: skip
def test_refusals(changes, message):
    given = {
        "query": make(1, 1, 2, 192, dtype=torch.float16),
        "key": make(2, 64, 1, 192, dtype=torch.float16),
        "value": make(2, 64, 1, 128, dtype=torch.float16),
        "topk_indices": torch.zeros(1, 1, 2).int(),
        "scale_value": 1.0,
        "head_num": 2,
        "key_value_head_num": 1,
        "select_block_size": 32,
        "select_block_count": 2,
        "page_block_size": 64,
        "block_table": torch.zeros(1, 1).int(),
        "actual_seq_kvlen": [40],
    }
    merged = {**given, **changes}
    merged = {k: v.npu() if isinstance(v, torch.Tensor) else v for k, v in merged.items()}
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_nsa_select_attention_infer(**merged)
