"""What programs import of upstream's loader of ATB: its operators are there from the start here."""

from __future__ import annotations

import torch

from torch_npu import atb as _atb

globals().update({name: getattr(torch.ops.atb, name) for name in _atb.__all__})


def _register_atb_extensions() -> None:
    """Upstream loads the ATB library here, so that the first operator need not; nothing is left to do."""
