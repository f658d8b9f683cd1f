"""torch.npu.amp.GradScaler."""

from __future__ import annotations

from typing import Any

import torch


class GradScaler(torch.amp.GradScaler):
    """torch.amp.GradScaler on the npu, with upstream's defaults."""

    def __init__(self, init_scale: float = 2.0**16, *args: Any, **kwargs: Any) -> None:
        super().__init__("npu", init_scale, *args, **kwargs)
