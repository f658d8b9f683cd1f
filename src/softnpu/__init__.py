"""softnpu: the emulated NPU device that torch_npu and torchair stand on. It imports no torch_npu."""

from softnpu._version import __version__

__all__ = ["__version__"]
