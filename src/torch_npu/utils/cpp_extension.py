"""Building C++ extensions against torch_npu; mirrors upstream's torch_npu.utils.cpp_extension. See docs/cpp_extensions.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import setuptools
from torch.utils import cpp_extension

__all__ = ["NpuExtension", "include_paths", "library_paths"]

PYTORCH_NPU_INSTALL_PATH = str(Path(__file__).resolve().parent.parent)


def include_paths() -> list[str]:
    """The folders of torch_npu's headers, and of CANN's that they include."""
    include = Path(PYTORCH_NPU_INSTALL_PATH) / "include"
    third_party = [include / "third_party" / part / "inc" for part in ("acl", "hccl")]
    return [str(path) for path in (include, *third_party)]


def library_paths() -> list[str]:
    """The folder of libtorch_npu."""
    return [str(Path(PYTORCH_NPU_INSTALL_PATH) / "lib")]


def NpuExtension(name: str, sources: list[str], *args: Any, **kwargs: Any) -> setuptools.Extension:
    """A setuptools.Extension with what an extension of torch_npu needs; build it with torch's BuildExtension.

    Args:
        name: of the module.
        sources: its C++ files.
        args: as setuptools.Extension takes them.
        kwargs: likewise; `include_dirs`, `library_dirs` and `libraries` are added to.
    """
    own: dict[str, list[str]] = {
        "include_dirs": include_paths() + cpp_extension.include_paths(),
        "library_dirs": library_paths() + cpp_extension.library_paths(),
        "libraries": ["c10", "torch", "torch_cpu", "torch_python", "torch_npu"],
    }
    for key, values in own.items():
        kwargs[key] = [*kwargs.get(key, []), *values]
    kwargs["language"] = "c++"
    return setuptools.Extension(name, sources, *args, **kwargs)
