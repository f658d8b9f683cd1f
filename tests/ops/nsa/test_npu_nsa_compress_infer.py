"""npu_nsa_compress_infer: which sequences complete a window, and what is stored."""

import pytest
import torch

import torch_npu
from tests.ops.nsa import reference
from tests.ops.support import assert_accurate, make


@pytest.mark.parametrize("paged", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_completed_windows_are_stored(paged, dtype):
    lengths = [31, 32, 80, 81, 96, 0]  # windows of 32 every 16: complete at 32, 48, ..., 80, 96
    w, cache = make(32, 3, dtype=dtype), make(9, 3, 16, dtype=dtype, seed=3)
    slots = torch.tensor([8, 3, 0, 5, 2, 7], dtype=torch.int32)
    before = cache.cpu().clone()
    if paged:
        table = torch.tensor([[i, 11 - i] for i in range(6)], dtype=torch.int32)
        x = make(12, 64, 3, 16, dtype=dtype)
        rows = [reference.pages(x.cpu(), table[i], n) for i, n in enumerate(lengths)]
        more = {"block_table": table.npu()}
    else:
        x, more = make(sum(lengths), 3, 16, dtype=dtype), {}
        rows = list(x.cpu().split(lengths))
    got = torch_npu.npu_nsa_compress_infer(
        x, w, slots.npu(), 32, 16, 64, actual_seq_len=lengths, cache=cache, **more
    )
    assert got.data_ptr() == cache.data_ptr()
    want, plain = before.double(), before.clone()
    for i in (1, 2, 4):
        tail = rows[i][-32:]
        want[slots[i]] = sum(w.cpu().double()[j, :, None] * tail[j].double() for j in range(32))
        plain[slots[i]] = sum(w.cpu()[j, :, None] * tail[j] for j in range(32))
    assert_accurate(cache, want, plain)
    for slot in (8, 5, 7, 1, 4, 6):
        assert torch.equal(cache.cpu()[slot], before[slot])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"page_block_size": 32}, "'page_block_size' must be 64 or 128.*32"),
        ({"compress_stride": 24}, "'compress_stride' must be 16, 32, 48 or 64.*24"),
        ({"compress_stride": 64}, "'compress_stride' must be at most 32.*64"),
        ({"compress_block_size": 80}, "'compress_block_size' must be a multiple of 16 up to 64"),
        ({"input": make(3, 64, 66, 16, dtype=torch.float16)}, "'input' must be of 1 to 64 heads"),
        ({"actual_seq_len": [1, 2]}, "'actual_seq_len' must be 1 lengths"),
        ({"actual_seq_len": [300]}, "'block_table' must be of 1 rows for sequences of up to 300 tokens"),
        ({"cache": make(4, 2, 16)}, "'cache' must be of the dtype of 'input'"),
        ({"slot_mapping": make(1)}, "'slot_mapping' must be of dtype torch.int32"),
    ],
)  # fmt: skip
def test_refusals(changes, message):
    given = {
        "input": make(3, 64, 2, 16, dtype=torch.float16),
        "weight": make(32, 2, dtype=torch.float16),
        "slot_mapping": torch.zeros(1, dtype=torch.int32).npu(),
        "compress_block_size": 32,
        "compress_stride": 16,
        "page_block_size": 64,
        "block_table": torch.zeros(1, 2, dtype=torch.int32).npu(),
        "actual_seq_len": [80],
        "cache": make(4, 2, 16, dtype=torch.float16),
    }
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_nsa_compress_infer(**{**given, **changes})
