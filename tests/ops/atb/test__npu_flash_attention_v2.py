"""_npu_flash_attention_v2: what only it has; its numbers are in test__npu_flash_attention."""

import torch

import torch_npu
from tests.ops.support import make


def test_tokens_of_no_sequence_stay():
    rows = make(4, 2, 16, dtype=torch.float16)
    out, mask = torch.full_like(rows, 7), make(3, 3, dtype=torch.float16)
    torch_npu.atb._npu_flash_attention_v2(
        rows, rows, rows, [3], mask=mask, mask_type=1, num_heads=2, num_kv_heads=0, out=out
    )
    assert (out[3] == 7).all() and (out[:3] != 7).all()
