"""Every `SOFTNPU_*` variable, read here and nowhere else.

| variable | meaning | default |
|---|---|---|
| SOFTNPU | 0: no device at all | 1 |
| SOFTNPU_SOC | the chip, a section of chips.toml | Ascend910B3 |
| SOFTNPU_DEVICES | how many devices | 8 |
| SOFTNPU_MEMORY | memory of each device, e.g. 64GiB | the chip's |
| SOFTNPU_CANN_VERSION | the CANN version that is reported | 9.0.0 |
| SOFTNPU_CANN_HOME | what ASCEND_HOME_PATH becomes where it is unset; 0: it stays unset | a directory of softnpu's |
| SOFTNPU_KERNELS | folder of Python files that register reference kernels (softnpu.kernels) | none |
| SOFTNPU_STRICT | documented constraints: 1 raise, 0 ignore | 1 |
| SOFTNPU_QUIET | 1: no banner | 0 |
| SOFTNPU_COMPUTE | 0: shapes alone, nothing is computed (docs/plan-runs.md) | 1 |
| SOFTNPU_ROUTING | with SOFTNPU_COMPUTE=0, how tokens choose experts: balanced, or skew=1.5: the first 1.5 times as often | balanced |
| SOFTNPU_SANITIZE | 1: find races, exit code 66 if there are any; warn: the program's exit code stays | 0 |
| SOFTNPU_POISON | 1: with the sanitizer, fresh memory is filled and reads of it are found | 0 |
| SOFTNPU_SHUFFLE | a seed: work of different streams runs in another legal order; 0: as launched | 0 |
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from softnpu import torch_versions

_UNITS = {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
MAX_DEVICES = 64
MAX_MEMORY = 2**62  # of a device: sums of two stay in 64 bits


@dataclass(frozen=True)
class Settings:
    """One consistent set of settings; `memory` is None where the chip's own size holds."""

    enabled: bool = True
    soc: str = "Ascend910B3"
    devices: int = 8
    memory: int | None = None
    cann_version: str = "9.0.0"
    cann_home: str | None = None
    kernels: str | None = None
    strict: bool = True
    quiet: bool = False
    compute: bool = True
    routing: float = 1.0
    sanitize: str = "0"
    poison: bool = False
    shuffle: int = 0


def read(environment: Mapping[str, str] = os.environ) -> Settings:
    """The settings that an environment asks for; a wrong value is an error that names the variable."""
    unknown = [k for k in environment if k.startswith("SOFTNPU_") and k not in _READERS]
    if unknown:
        known = ", ".join(sorted(_READERS))
        raise ValueError(f"{unknown[0]} is not a setting of softnpu. The settings are {known}.")
    found = {}
    for variable, (name, reader) in _READERS.items():
        text = environment.get(variable, "").strip()
        if text:
            found[name] = reader(variable, text)
    found.setdefault("cann_version", torch_versions.cann(torch_versions.stated()))
    return Settings(**found)  # type: ignore[arg-type]


def _flag(variable: str, text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError(f"{variable} must be 0 or 1, but is {text[:80]!r}.")
    return text == "1"


def _sanitize(variable: str, text: str) -> str:
    if text not in ("0", "1", "warn"):
        raise ValueError(f"{variable} must be 0, 1 or warn, but is {text[:80]!r}.")
    return text


def _routing(variable: str, text: str) -> float:
    match = re.fullmatch(r"balanced|skew=(\d{1,6}(?:\.\d{1,6})?)", text)
    skew = float(match[1] or 1) if match else 0.0
    if skew < 1:
        raise ValueError(
            f"{variable} must be balanced, or skew=N with N from 1 on, but is {text[:80]!r}."
        )
    return skew


def _seed(variable: str, text: str) -> int:
    if not text.isdecimal() or len(text) > 18:
        raise ValueError(f"{variable} must be a number, but is {text[:80]!r}.")
    return int(text)


def _count(variable: str, text: str) -> int:
    if not text.isdecimal() or len(text) > 9 or not 1 <= int(text) <= MAX_DEVICES:
        raise ValueError(
            f"{variable} must be a number from 1 to {MAX_DEVICES}, but is {text[:80]!r}."
        )
    return int(text)


def _size(variable: str, text: str) -> int:
    match = re.fullmatch(r"(\d{1,24}(?:\.\d{1,24})?)\s*([BKMGT]?)(?:i?B)?", text, re.IGNORECASE)
    size = int(Fraction(match[1]) * _UNITS[match[2].upper()]) if match else 0
    if not 2**21 <= size <= MAX_MEMORY:
        raise ValueError(
            f"{variable} must be a size from 2MiB to {MAX_MEMORY // 2**40}TiB such as 64GiB or 512MiB, "
            f"but is {text[:80]!r}."
        )
    return size


def _chip(variable: str, text: str) -> str:
    from softnpu import chips

    names = chips.names()
    if text not in names:
        raise ValueError(
            f"{variable}={text[:80]!r} is not a known chip. Known chips: {', '.join(names)}."
        )
    return text


def _version(variable: str, text: str) -> str:
    if not re.fullmatch(r"\d{1,9}(\.[\w-]{1,20}){0,9}", text, re.ASCII):
        raise ValueError(f"{variable} must be a version such as 9.0.0, but is {text[:80]!r}.")
    return text


def _folder(variable: str, text: str) -> str:
    if text != "0" and not os.path.isdir(text):
        raise ValueError(f"{variable} must be a directory that exists, but is {text[:200]!r}.")
    return text


_READERS = {
    "SOFTNPU": ("enabled", _flag),
    "SOFTNPU_SOC": ("soc", _chip),
    "SOFTNPU_DEVICES": ("devices", _count),
    "SOFTNPU_MEMORY": ("memory", _size),
    "SOFTNPU_CANN_VERSION": ("cann_version", _version),
    "SOFTNPU_CANN_HOME": ("cann_home", _folder),
    "SOFTNPU_KERNELS": ("kernels", _folder),
    "SOFTNPU_STRICT": ("strict", _flag),
    "SOFTNPU_QUIET": ("quiet", _flag),
    "SOFTNPU_COMPUTE": ("compute", _flag),
    "SOFTNPU_ROUTING": ("routing", _routing),
    "SOFTNPU_SANITIZE": ("sanitize", _sanitize),
    "SOFTNPU_POISON": ("poison", _flag),
    "SOFTNPU_SHUFFLE": ("shuffle", _seed),
}

_current: Settings | None = None


def current() -> Settings:
    """The settings of this process, read from the environment at first use."""
    global _current
    if _current is None:
        _current = read()
    return _current


def strict() -> bool:
    """Whether documented constraints raise."""
    return current().strict


@contextlib.contextmanager
def override(**changes: object) -> Iterator[Settings]:
    """Other settings inside a `with` block, for tests: `with settings.override(strict=False): ...`.

    The number of devices and their memory are fixed once the device has started.
    """
    global _current
    before = current()
    _current = replace(before, **changes)  # type: ignore[arg-type]
    try:
        yield _current
    finally:
        _current = before


def visible_devices(environment: Mapping[str, str] = os.environ) -> list[int]:
    """The devices that this process sees, by their number on the machine (ASCEND_RT_VISIBLE_DEVICES)."""
    wanted = current()
    if not wanted.enabled:
        return []
    text = environment.get("ASCEND_RT_VISIBLE_DEVICES")
    if text is None:
        return list(range(wanted.devices))
    devices: list[int] = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        if not part.isdecimal() or len(part) > 9:
            raise ValueError(
                f"ASCEND_RT_VISIBLE_DEVICES must be device numbers such as 0,1, but is {text[:80]!r}."
            )
        # As on the card, the list ends at the first device that does not exist.
        if int(part) >= wanted.devices:
            break
        if int(part) not in devices:
            devices.append(int(part))
    return devices
