"""Upstream's switches of its Inductor backend, for programs that read or set them. None has an effect here."""

from __future__ import annotations

from torch_npu.npu import get_device_properties

__all__ = ["num_cube_core", "num_vector_core"]  # noqa: F822


def __getattr__(name: str) -> int:
    """The cores of the chip, asked for when a program reads them."""
    if name in __all__:
        properties = get_device_properties()
        return properties.cube_core_num if name == "num_cube_core" else properties.vector_core_num
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
