"""Inputs of the documented sizes for the samples of the MLA operators."""

from __future__ import annotations

import torch

from torch_npu.ops.mla._paged import DR, HCKV, HCQ, HE, D

FULL = ("x", "w_dq", "uq_qr", "w_dkv_kr")


def _tensor(make, shape, kind):
    if kind == "int8":
        return make(*shape, dtype=torch.int8, low=-100, high=100)
    return make(*shape, dtype=torch.bfloat16)


def arguments(make, tokens, heads=1, down="bf16", up="bf16", cache="bf16", blocks=2, size=16):
    """The positional arguments; `down`, `up` and `cache` say "int8" for what is quantized."""
    count = torch.Size(tokens).numel()
    rope_cache = cache if down == "bf16" else "bf16"
    return (
        _tensor(make, (*tokens, HE), down),
        _tensor(make, (HE, HCQ), down),
        _tensor(make, (HCQ, heads * (D + DR)), up),
        _tensor(make, (heads, D, HCKV), "bf16"),
        _tensor(make, (HE, HCKV + DR), down),
        _tensor(make, (HCQ,), "bf16"),
        _tensor(make, (HCKV,), "bf16"),
        _tensor(make, (*tokens, DR), "bf16"),
        _tensor(make, (*tokens, DR), "bf16"),
        make(count, dtype=torch.int64, low=0, high=blocks * size).view(tokens),
        _tensor(make, (blocks, size, 1, HCKV), cache),
        _tensor(make, (blocks, size, 1, DR), rope_cache),
    )


def scales(make, count, *names, heads=1):
    """The named scales as keyword arguments; `count` is the number of tokens."""
    table = {
        "x": ("dequant_scale_x", (count, 1), 0.01),
        "w_dq": ("dequant_scale_w_dq", (1, HCQ), 0.01),
        "uq_qr": ("dequant_scale_w_uq_qr", (1, heads * (D + DR)), 0.01),
        "w_dkv_kr": ("dequant_scale_w_dkv_kr", (1, HCKV + DR), 0.01),
        "ckv": ("quant_scale_ckv", (1, HCKV), 20.0),
        "ckr": ("quant_scale_ckr", (1, DR), 20.0),
        "smooth": ("smooth_scales_cq", (1, HCQ), 1.0),
    }
    chosen = (table[name] for name in names)
    return {name: make(*shape, low=top / 2, high=top) for name, shape, top in chosen}
