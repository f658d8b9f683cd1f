"""What is installed, for reports: `python -m torch_npu.utils.collect_env`. Mirrors upstream's module."""

from __future__ import annotations

import os
import site
import sys
import warnings
from collections import namedtuple

import torch
from torch.utils import collect_env as torch_collect_env

import torch_npu
from torch_npu.npu import utils

__all__ = [
    "SystemEnv",
    "check_directory_path_readable",
    "check_path_owner_consistent",
    "get_cann_version",
    "get_env_info",
    "get_pretty_env_info",
    "get_torch_npu_install_path",
    "get_torch_npu_version",
    "main",
    "pretty_str",
]

#: each field with its line in the report
_LINES = {
    "torch_version": "PyTorch version: {}",
    "torch_npu_version": "Torch-npu version: {}",
    "is_debug_build": "Is debug build: {}",
    "os": "OS: {}",
    "gcc_version": "GCC version: {}",
    "clang_version": "Clang version: {}",
    "cmake_version": "CMake version: {}",
    "libc_version": "Libc version: {}",
    "python_version": "Python version: {}",
    "python_platform": "Python platform: {}",
    "is_xnnpack_available": "Is XNNPACK available: {}",
    "caching_allocator_config": "PYTORCH_ALLOC_CONF: {}",
    "cpu_info": "\nCPU:\n{}",
    "cann_version": "\nCANN:\n{} (emulated by softnpu)",
    "pip_packages": "\nVersions of relevant libraries:\n{}",
    "conda_packages": "{}",
}

SystemEnv = namedtuple(
    "SystemEnv",
    "torch_version torch_npu_version is_debug_build gcc_version clang_version cmake_version os libc_version "
    "python_version python_platform pip_version pip_packages conda_packages caching_allocator_config "
    "is_xnnpack_available cpu_info cann_version",
)


def get_torch_npu_install_path() -> str:
    """The first folder of site-packages, "" if there is none."""
    return next(iter(site.getsitepackages()), "")


def check_path_owner_consistent(path: str) -> None:
    """Raises if there is no such path; deprecated upstream, where it once compared owners."""
    warnings.warn(
        "check_path_owner_consistent no longer looks at owners; use check_directory_path_readable",
        FutureWarning,
        stacklevel=2,
    )
    if not os.path.exists(path):
        raise RuntimeError(f"The path does not exist: {path}")


def check_directory_path_readable(path: str) -> None:
    """Raises unless the path exists, is no symbolic link and may be read."""
    if not os.path.exists(path):
        raise RuntimeError(f"The path does not exist: {path}")
    if os.path.islink(path):
        raise RuntimeError(f"Invalid path is a symbolic link: {path}")
    if not os.access(path, os.R_OK):
        raise RuntimeError(f"The path permission check failed: {path}")


def get_cann_version() -> str:
    """The version of CANN that is emulated."""
    return utils.get_cann_version()


def get_torch_npu_version() -> str:
    return torch_npu.__version__


def get_env_info() -> SystemEnv:
    """Versions of what is installed; takes a second, for it asks compilers and pip."""
    run = torch_collect_env.run
    pip_version, pip_packages = torch_collect_env.get_pip_packages(run)
    bits = sys.maxsize.bit_length() + 1
    return SystemEnv(
        torch_version=torch.__version__,
        torch_npu_version=get_torch_npu_version(),
        is_debug_build=str(torch.version.debug),
        gcc_version=torch_collect_env.get_gcc_version(run),
        clang_version=torch_collect_env.get_clang_version(run),
        cmake_version=torch_collect_env.get_cmake_version(run),
        os=torch_collect_env.get_os(run),
        libc_version=torch_collect_env.get_libc_version(),
        python_version=f"{sys.version.replace(chr(10), ' ')} ({bits}-bit runtime)",
        python_platform=torch_collect_env.get_python_platform(),
        pip_version=pip_version,
        pip_packages=pip_packages,
        conda_packages=torch_collect_env.get_conda_packages(run),
        caching_allocator_config=os.environ.get("PYTORCH_NPU_ALLOC_CONF", ""),
        is_xnnpack_available=torch_collect_env.is_xnnpack_available(),
        cpu_info=torch_collect_env.get_cpu_info(run),
        cann_version=get_cann_version(),
    )


def pretty_str(envinfo: SystemEnv) -> str:
    """The report as text."""
    lines = []
    for name, line in _LINES.items():
        value = getattr(envinfo, name)
        if value is None:
            value = "Could not collect"
        if isinstance(value, bool):
            value = "Yes" if value else "No"
        if name in ("pip_packages", "conda_packages"):
            tag = envinfo.pip_version if name == "pip_packages" else "conda"
            text = value or "No relevant packages"
            value = "\n".join(f"[{tag}] {one}" for one in text.split("\n"))
        lines.append(line.format(value))
    return "\n".join(lines)


def get_pretty_env_info() -> str:
    return pretty_str(get_env_info())


def main() -> None:
    print("Collecting environment information...")
    print(get_pretty_env_info())


if __name__ == "__main__":
    main()
