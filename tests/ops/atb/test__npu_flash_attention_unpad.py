"""_npu_flash_attention_unpad: what only it has; its numbers are in test__npu_flash_attention."""

import torch

import torch_npu
from tests.ops.support import make


def test_no_tokens():
    rows = make(4, 2, 16, dtype=torch.float16)
    out = torch.full_like(rows, 7)
    lengths = torch.tensor([], dtype=torch.int32)
    torch_npu._npu_flash_attention_unpad(rows, rows, rows, lengths, 1.0, 2, 2, out)
    assert (out == 7).all(), "tokens of no sequence stay as they are"
