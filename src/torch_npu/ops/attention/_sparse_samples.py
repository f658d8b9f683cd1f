"""Inputs of the sparse attentions' samples."""

from __future__ import annotations

import torch


def half(make, *shape, **options):
    return make(*shape, dtype=torch.bfloat16, **options)


def ropes(make, query, key):
    return {
        "query_rope": half(make, *query, 64),
        "key_rope": half(make, *key, 64),
        "attention_mode": 2,
    }
