"""The floating types that the vector unit of the current chip takes."""

from __future__ import annotations

import torch

from softnpu import chips

#: families whose vector unit has no bfloat16 (Atlas training and inference series)
WITHOUT_BFLOAT16 = ("910A", "310P")


def vector_floats() -> tuple[torch.dtype, ...]:
    """float16 and float32, and bfloat16 except on the chips that lack it."""
    if chips.current().family in WITHOUT_BFLOAT16:
        return (torch.float16, torch.float32)
    return (torch.float16, torch.bfloat16, torch.float32)
