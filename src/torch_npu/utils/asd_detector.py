"""Silent-fault detection by hooks; mirrors upstream's torch_npu.utils.asd_detector.

Upstream's functions act only with the first version of the check. The versions after it, which
`torch_npu._C._get_silent_check_version` reports, work without hooks of the program's, so both functions return at once.
"""

from __future__ import annotations

import torch

__all__ = ["register_asd_hook", "set_asd_loss_scale"]


def set_asd_loss_scale(loss_scale: float = 1.0) -> None:
    """Has no effect, as upstream with a check of version 2 or later.

    Args:
        loss_scale: by which the program scales its loss.
    """
    if not isinstance(loss_scale, (int, float)):
        raise TypeError(f"loss_scale must be a number, but received {type(loss_scale).__name__}")


def register_asd_hook(x: torch.Tensor | None, weight: torch.Tensor) -> None:
    """Has no effect, as upstream with a check of version 2 or later.

    Args:
        x: an activation.
        weight: the parameter that it goes through.
    """
    for name, given in (("x", x), ("weight", weight)):
        if given is not None and not isinstance(given, torch.Tensor):
            raise TypeError(f"{name} must be a Tensor, but received {type(given).__name__}")
