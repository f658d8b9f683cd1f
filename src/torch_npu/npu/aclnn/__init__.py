"""torch.npu.aclnn: `allow_hf32` of convolutions as a module attribute, in the manner of torch.backends."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import ModuleType

from torch_npu.npu import _options
from torch_npu.npu.aclnn.backends import version
from torch_npu.npu.npu_config import _bool

__all__ = ["allow_hf32", "flags", "set_flags", "version"]

allow_hf32: bool


class _AclnnModule(ModuleType):
    @property
    def allow_hf32(self) -> bool:
        """Whether fp32 convolutions round their inputs to HF32."""
        return _options.get("ALLOW_CONV_HF32") != "disable"

    @allow_hf32.setter
    def allow_hf32(self, value: bool) -> None:
        _options.set_all({"ALLOW_CONV_HF32": _bool("allow_hf32", value)})


def set_flags(_allow_hf32: bool | None = None) -> tuple[bool]:
    """Sets what is given and returns what was."""
    before = (_options.get("ALLOW_CONV_HF32") != "disable",)
    if _allow_hf32 is not None:
        _options.set_all({"ALLOW_CONV_HF32": _bool("allow_hf32", _allow_hf32)})
    return before


@contextlib.contextmanager
def flags(allow_hf32: bool = True) -> Iterator[None]:
    """Another setting inside the block."""
    before = set_flags(allow_hf32)
    try:
        yield
    finally:
        set_flags(*before)


sys.modules[__name__].__class__ = _AclnnModule
