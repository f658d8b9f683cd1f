"""The chips that the device can be: one profile a chip, read from chips.toml."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources

from softnpu import settings
from softnpu.python_versions import tomllib


@dataclass(frozen=True)
class Chip:
    """What programs and the device need to know of a chip; sources of the figures are in chips.toml."""

    name: str
    soc_version: int  # the number torch_npu.npu.utils.get_soc_version() reports
    family: str  # the product series that upstream's pages distinguish: A2, A3, A5, 310P, 910A
    product: str
    memory: int  # bytes of device memory
    memory_bandwidth: float  # bytes a second
    cube_cores: int
    vector_cores: int
    l2_cache: int  # bytes
    peak: dict[str, float]  # dtype -> operations a second
    dtypes: tuple[str, ...]  # floating types its cube unit takes
    inf_nan: bool  # whether the chip has the INF/NAN mode
    max_streams: int = 0  # of a device; 0: not published
    max_events: int = 0
    links: Mapping[str, float] = field(default_factory=dict, hash=False)  # empty: not published


@functools.cache
def _profiles() -> dict[str, Chip]:
    table = tomllib.loads(resources.files("softnpu").joinpath("chips.toml").read_text("utf-8"))
    profiles = {}
    for name, entry in table.items():
        values = {k: v for k, v in entry.items() if k != "sources"}
        values["memory"] = int(values.pop("memory_gib") * 2**30)
        values["l2_cache"] = int(values.pop("l2_mib") * 2**20)
        values["memory_bandwidth"] = values.pop("bandwidth_gbs") * 1e9
        values["peak"] = {d: t * 1e12 for d, t in values.pop("peak_tops").items()}
        values["dtypes"] = tuple(values["dtypes"])
        values["links"] = {k: v for k, v in values.get("links", {}).items() if k != "sources"}
        profiles[name] = Chip(name=name, **values)
    return profiles


def names() -> list[str]:
    """The names that SOFTNPU_SOC takes."""
    return list(_profiles())


def get(name: str) -> Chip:
    """The profile of a chip by name."""
    return _profiles()[name]


def current() -> Chip:
    """The chip that the settings choose."""
    return get(settings.current().soc)
