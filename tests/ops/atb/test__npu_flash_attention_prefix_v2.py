"""_npu_flash_attention_prefix_v2: empty sequences; its numbers are in test__npu_flash_attention_qlens."""

import torch

import torch_npu
from tests.ops.support import make


def test_no_new_tokens():
    query = make(2, 2, 16, dtype=torch.float16)
    cache = make(2, 128, 2, 16, dtype=torch.float16)
    table = make(2, 1, dtype=torch.int32, low=0, high=2)
    found = torch_npu.atb._npu_flash_attention_prefix_v2(
        query, cache, cache, table, torch.ones(128, 128).triu(1).half().npu(), [0, 2], [128, 2],
        num_heads=2, num_kv_heads=2, out=torch.zeros_like(query),
    )  # fmt: skip
    assert found.shape == query.shape and found.isfinite().all()
