"""npu_self_attention_prefix_encoder: empty sequences; its numbers are in test__npu_flash_attention_qlens."""

import torch

import torch_npu
from tests.ops.support import make


def test_no_new_tokens():
    query = make(2, 2, 16, dtype=torch.float16)
    cache = make(2, 128, 2, 16, dtype=torch.float16)
    table = make(2, 1, dtype=torch.int32, low=0, high=2)
    found = torch_npu.atb.npu_self_attention_prefix_encoder(
        query, cache, cache, table, [0, 2], [128, 2], 2, 1.0, 2
    )
    assert found.shape == query.shape and found.isfinite().all()
