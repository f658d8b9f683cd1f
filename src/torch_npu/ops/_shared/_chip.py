"""Which products the pages set apart."""

from __future__ import annotations

from softnpu import chips


def on_950() -> bool:
    """Ascend950: the 8-bit and 4-bit floats, and the options that only it has."""
    return chips.current().family == "A5"


def on_310p() -> bool:
    """The Atlas inference series."""
    return chips.current().family == "310P"


#: formats that Ascend950 adds to the integers
FLOATS_OF_950 = ("float8_e4m3fn", "float8_e5m2", "hifloat8")


def formats(*everywhere: str) -> tuple[str, ...]:
    """The formats of every product, and on Ascend950 its 8-bit floats."""
    return (*everywhere, *FLOATS_OF_950) if on_950() else everywhere
