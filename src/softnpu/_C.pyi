"""softnpu._C, the compiled device; csrc/torch/runtime/module.cpp is its definition."""

from typing import Any

class DeviceError(RuntimeError): ...

def __getattr__(name: str) -> Any: ...
