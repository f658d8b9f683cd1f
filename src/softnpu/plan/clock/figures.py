"""What the clock reads of a chip, what it returns for a task, and its error."""

from __future__ import annotations

from dataclasses import dataclass

from softnpu.chips import Chip

CUBE_MACS = (
    16 * 16 * 16
)  # of a cube core in a cycle, float16 (the cube unit of the Da Vinci architecture)


class ClockError(ValueError):
    """What is asked for cannot be predicted, and why."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of a task, what limits it, and the multiplications and additions of its products."""

    seconds: float
    bound: str  # cube, vector, memory, launch, link, latency
    flops: float = 0.0


def peak(chip: Chip, dtype: str) -> float:
    """Operations a second of the cube unit."""
    if dtype in chip.peak:
        return chip.peak[dtype]
    like = {"uint8": "int8", "int4": "int8", "quint4x2": "int8", "float64": "float32"}
    like |= dict.fromkeys(
        ("float8_e5m2", "hifloat8", "float4_e2m1fn_x2", "float4"), "float8_e4m3fn"
    )
    like |= dict.fromkeys(("int16", "int32", "int64", "complex64", "complex128"), "float32")
    if like.get(dtype) in chip.peak:
        return chip.peak[like[dtype]]
    known = ", ".join(chip.peak)
    raise ClockError(f"chips.toml has no peak of {chip.name} for {dtype} (it has {known})")


def frequency(chip: Chip) -> float:
    """Cycles a second of a core, from the peak of float16."""
    return peak(chip, "float16") / (2 * CUBE_MACS * chip.cube_cores)


def link(chip: Chip, name: str) -> float:
    """A figure of the links of a device, bytes a second where it is a bandwidth."""
    if name not in chip.links:
        raise ClockError(f"chips.toml has no figure links.{name} of {chip.name}: none is published")
    value = chip.links[name]
    return value * 1e9 if name.endswith("_gbs") else value


def bound_of(parts: dict[str, float]) -> str:
    """The name of the largest part."""
    return max(parts, key=lambda name: parts[name])
