"""_npu_flash_attention_v2: what only it has; its numbers are in test__npu_flash_attention."""

import torch

import torch_npu
from tests.ops.support import make


def test_tokens_of_no_sequence_stay():
    rows = make(4, 2, 16, dtype=torch.float16)
    out = torch.full_like(rows, 7)
    torch_npu.atb._npu_flash_attention_v2(
        rows, rows, rows, [3], mask_type=0, num_heads=2, num_kv_heads=2, out=out
    )
    assert (out[3] == 7).all() and (out[:3] != 7).all()
