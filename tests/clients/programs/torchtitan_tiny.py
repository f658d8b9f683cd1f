"""A tiny DeepSeek-V3 for torchtitan-npu, with its fused operators; `torchtitan_tiny.config_registry` for its command line."""

from __future__ import annotations

import dataclasses
import os

from torchtitan_npu.models import deepseek_v3
from torchtitan_npu.models.deepseek_v3 import config_registry


def tiny():
    config = config_registry.deepseek_v3_smoketest()
    model = deepseek_v3._make_dsv3_model_config(
        vocab_size=2048, dim=128, inter_dim=256, moe_inter_dim=64, n_layers=3, n_dense_layers=1, n_heads=4,
        num_experts=8, q_lora_rank=32, kv_lora_rank=32, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32,
        router_top_k=2,
    )  # fmt: skip
    config.model_spec = dataclasses.replace(config.model_spec, model=model)
    config.hf_assets_path = os.environ["TOKENIZER"]
    config.training.seq_len, config.training.steps = 128, 4
    config.debug.seed = 1
    return config
