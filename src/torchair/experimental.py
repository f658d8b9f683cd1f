"""torchair.use_internal_format_weight and patch_for_hcom; mirrors upstream's torchair.experimental."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import torch

import torch_npu
from torchair.core.utils import logger

__all__ = ["patch_for_hcom", "use_internal_format_weight"]

_FRACTAL_Z, _FRACTAL_NZ = 4, 29
#: modules of torch_npu.contrib whose weights are matrices of integers
_QUANTIZED = {
    "linear_a8w8_quant.LinearA8W8Quant": ("310P",),
    "linear_quant.LinearQuant": None,
    "linear_weight_quant.LinearWeightQuant": ("310P", "A2"),
}


def use_internal_format_weight(model: torch.nn.Module) -> None:
    """Gives weights the formats that products and convolutions like best: NZ for Linear, FRACTAL_Z for Conv2d.

    Convolutions are cast in float16 and without groups alone. Weights must be on npu.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(
            f"use_internal_format_weight: model must be a Module, received {type(model).__name__}"
        )
    for module in model.modules():
        if isinstance(module, torch.nn.Conv2d):
            if module.groups == 1 and _on_npu(module).dtype == torch.float16:
                _cast(module, _FRACTAL_Z)
        elif isinstance(module, torch.nn.Linear) or _is_quantized(module):
            _cast(module, _FRACTAL_NZ)


def patch_for_hcom() -> None:
    """Made collectives traceable for PyTorch 2.1; dynamo traces them itself since 2.3.1, so this only says so."""
    logger.warning("collectives enter graphs without patch_for_hcom from PyTorch 2.3.1 on")


def _on_npu(module: Any) -> torch.Tensor:
    weight = module.weight
    if weight.device.type != "npu":
        raise RuntimeError(
            f"use_internal_format_weight: the weight of {type(module).__name__} must be on npu, received one on "
            f"{weight.device}; move the model there first"
        )
    return weight


def _cast(module: Any, acl_format: int) -> None:
    weight = _on_npu(module)
    weight.data = torch_npu.npu_format_cast(weight.data, acl_format)  # type: ignore[attr-defined]


def _is_quantized(module: torch.nn.Module) -> bool:
    from softnpu import chips

    if importlib.util.find_spec("torch_npu.contrib") is None:
        return False
    for path, families in _QUANTIZED.items():
        file, _, name = path.partition(".")
        full = f"torch_npu.contrib.module.{file}"
        if type(module).__name__ == name and type(module).__module__ == full:
            return families is None or chips.current().family in families
    return False
