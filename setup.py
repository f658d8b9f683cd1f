"""Builds the one extension, softnpu/_C, from everything under csrc."""

import platform
from pathlib import Path

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

ROOT = Path(__file__).resolve().parent


def vector_flags() -> list[str]:
    """Vector instructions of the machine that builds, in the terms of at::vec."""
    if platform.machine() != "x86_64":
        return []
    cpuinfo = Path("/proc/cpuinfo")
    features = set(cpuinfo.read_text().split()) if cpuinfo.exists() else set()
    if {"avx2", "fma", "f16c"} <= features:
        return ["-mavx2", "-mfma", "-mf16c", "-DCPU_CAPABILITY=AVX2", "-DCPU_CAPABILITY_AVX2"]
    return []


class Build(BuildExtension):
    """Keeps its object files in one place, also for editable installs, so that only what changed is compiled."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.build_temp = str(ROOT / "build" / "objects")


extension = CppExtension(
    "softnpu._C",
    sorted(str(p.relative_to(ROOT)) for p in (ROOT / "csrc").rglob("*.cpp")),
    include_dirs=[str(ROOT / "csrc")],
    extra_compile_args=[
        "-std=c++20", "-O3", "-g0", "-Wall", "-Wno-unknown-pragmas", "-fvisibility=hidden", "-fopenmp", *vector_flags(),
    ],
    extra_link_args=["-fopenmp"],
)  # fmt: skip

setup(ext_modules=[extension], cmdclass={"build_ext": Build})
