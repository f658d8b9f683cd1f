"""torch.npu.aclnn.version."""

from __future__ import annotations

import warnings


def version() -> None:
    """None, as documented: the library of operators tells no version."""
    warnings.warn("torch.npu.aclnn.version isn't implemented!", stacklevel=2)
