"""Quantized checkpoints in the format of msModelSlim, made on the spot, and the same arithmetic in transformers.

Weights have a scale for each output channel, rounded to bfloat16; activations one for each token, found when they come.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import safetensors.torch
import torch
from torch.overrides import TorchFunctionMode

LEVELS = {8: 127, 4: 7}


def _round(weight: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    level = LEVELS[bits]
    scale = (weight.abs().amax(1, keepdim=True) / level).bfloat16().float()
    return (weight / scale).round().clamp(-level - 1, level).to(torch.int8), scale


def _packed(values: torch.Tensor) -> torch.Tensor:
    """Two outputs to a byte, the first one in the low bits."""
    low, high = values[0::2], values[1::2]
    return (low & 15) | (high << 4)


def make(path: Path, folder: Path, expert_bits: int = 8) -> tuple[Path, Path]:
    """The quantized checkpoint, and one in float32 with the values that its weights stand for."""
    weights = safetensors.torch.load_file(path / "model.safetensors")
    kept, values, description = {}, {}, {"model_quant_type": "W8A8_DYNAMIC", "group_size": 0}
    for name, weight in weights.items():
        values[name] = weight
        if not name.endswith("_proj.weight"):
            kept[name], description[name] = weight, "FLOAT"
            continue
        bits = expert_bits if ".experts." in name else 8
        rounded, scale = _round(weight, bits)
        values[name] = rounded * scale
        parts = {"weight": rounded, "weight_scale": scale, "weight_offset": torch.zeros_like(scale)}
        if bits == 4:
            parts["weight"] = _packed(rounded)
            total = 8 * (rounded * scale).sum(1, keepdim=True)
            wide = 16 if "down_proj" in name else 1
            parts["scale_bias"] = torch.nn.functional.pad(total, (0, wide - 1))
        for part, tensor in parts.items():
            key = name.removesuffix("weight") + part
            kept[key] = tensor.contiguous()
            description[key] = f"W{bits}A8_DYNAMIC"
    made = folder / f"{path.name}-w{expert_bits}a8", folder / f"{path.name}-w{expert_bits}a8-values"
    for target, tensors in zip(made, (kept, values), strict=True):
        shutil.copytree(path, target)
        safetensors.torch.save_file(tensors, target / "model.safetensors", {"format": "pt"})
    (made[0] / "quant_model_description.json").write_text(json.dumps(description), "utf-8")
    return made


class DynamicQuantization(TorchFunctionMode):
    """Rounds what enters the quantized products of a model, token by token, as int8 activations are."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.storages = {
            weight.untyped_storage().data_ptr()
            for name, weight in model.named_parameters()
            if "_proj" in name
        }

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.nn.functional.linear:
            x, weight, *rest = args
            if weight.untyped_storage().data_ptr() in self.storages:
                scale = x.float().abs().amax(-1, keepdim=True).clamp(min=1e-30) / 127
                args = ((x.float() / scale).round() * scale).to(x.dtype), weight, *rest
        return function(*args, **(kwargs or {}))
