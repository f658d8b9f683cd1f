"""npu_scatter_pa_cache against loops; compressed heads are in test_npu_scatter_pa_kv_cache."""

import pytest
import torch

import torch_npu
from tests.ops.support import make


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8])
def test_tokens(dtype):
    rows = make(5, 2, 16, dtype=dtype, low=-9, high=9)
    cache = make(3, 4, 2, 16, dtype=dtype, low=-9, high=9, seed=1)
    slots = [11, 0, -1, 5, 4]
    expected = cache.cpu().clone()
    for token, slot in enumerate(slots):
        if slot >= 0:
            expected[slot // 4, slot % 4] = rows[token].cpu()
    found = torch_npu.npu_scatter_pa_cache(rows, torch.tensor(slots).int().npu(), key_cache=cache)
    assert found.data_ptr() == cache.data_ptr()
    assert torch.equal(cache.cpu(), expected)


@pytest.mark.parametrize(
    "slots,message",
    [
        (torch.tensor([0, 12]).int(), "'slot_mapping' must be below 12"),
        (torch.tensor([0.0, 1.0]), "'slot_mapping' must be of dtype torch.int32 or torch.int64"),
        (torch.tensor([0]), r"'slot_mapping' must be of shape \(2\)"),
    ],
)
def test_refusals(slots, message):
    with pytest.raises(RuntimeError, match=f"npu_scatter_pa_cache.value: argument {message}"):
        torch_npu.npu_scatter_pa_cache(make(2, 2, 16), slots.npu(), key_cache=make(3, 4, 2, 16))


def test_heads_of_their_own_need_lengths():
    with pytest.raises(RuntimeError, match="'compress_lens' must be given"):
        torch_npu.npu_scatter_pa_cache(
            make(2, 6, 2, 16), torch.zeros(2, 2).int().npu(), key_cache=make(3, 4, 1, 16)
        )
