"""From wide floats to low precision as the device does it: one rounding, then saturation at both ends.

NaN becomes 0 in an integer and stays NaN in an 8-bit float; infinities saturate like any other large value.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

#: smallest and largest value of the integer types; quint4x2 is upstream's name for signed int4
RANGES: dict[torch.dtype, tuple[int, int]] = {
    torch.int8: (-128, 127),
    torch.uint8: (0, 255),
    torch.int16: (-(2**15), 2**15 - 1),
    torch.int32: (-(2**31), 2**31 - 1),
    torch.quint4x2: (-8, 7),
}

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def _half_away(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x.frac().abs() == 0.5, x + 0.5 * x.sign(), x.round())


#: upstream's names of the rounding modes
ROUND_MODES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rint": torch.round,
    "round": _half_away,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "trunc": torch.trunc,
}


def largest(dtype: torch.dtype) -> float:
    """The largest finite value of a type: what dynamic quantization divides by."""
    return float(torch.finfo(dtype).max if dtype in FLOAT8 else RANGES[dtype][1])


def saturate(x: torch.Tensor, dtype: torch.dtype, mode: str = "rint") -> torch.Tensor:
    """Rounds a floating tensor to `dtype` (half to even unless `mode` says otherwise) and saturates.

    `torch.quint4x2` stands for int4: its values come as int8 in [-8, 7]; `pack_int4` packs them.
    8-bit floats round to nearest even by their own grid, whatever the mode.
    """
    if dtype in FLOAT8:
        top = torch.finfo(dtype).max
        return x.clamp(-top, top).to(dtype)
    low, high = RANGES[dtype]
    if dtype is torch.int32:
        x = x.double()  # 2**31 - 1 is no float32
    whole = ROUND_MODES[mode](x.clamp(low, high)).nan_to_num(nan=0.0)
    return whole.to(torch.int8 if dtype is torch.quint4x2 else dtype)
