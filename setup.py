"""Builds the one extension, src/softnpu/_C, from everything under csrc; and describes torch_npu to importlib.metadata."""

import os
import platform
import sysconfig
from pathlib import Path

# The package installed before may not fit this tree.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

import torch
from setuptools import Distribution, setup
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


#: what `make sanitize` asks g++ for, e.g. address,undefined; its objects are kept apart
SANITIZER = os.environ.get("SOFTNPU_SANITIZER", "")


def optimization() -> tuple[list[str], list[str]]:
    """Flags of the compiler and of the linker."""
    if not SANITIZER:
        return ["-O3", "-g0"], []
    # vptr checks need type information that PyTorch's libraries keep to themselves.
    checks = [f"-fsanitize={SANITIZER}", "-fno-sanitize=vptr"]
    return ["-O1", "-g1", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all", *checks], checks


class Build(BuildExtension):
    """Keeps its object files in one place, also for editable installs, so that only what changed is compiled."""

    def finalize_options(self) -> None:
        super().finalize_options()
        place = Path("sanitize", "objects") if SANITIZER else Path("objects")
        self.build_temp = str(ROOT / "build" / place)


compile_flags, link_flags = optimization()


extension = CppExtension(
    "softnpu._C",
    sorted(str(p.relative_to(ROOT)) for p in (ROOT / "csrc").rglob("*.cpp")),
    include_dirs=[str(ROOT / "csrc")],
    extra_compile_args=[
        "-std=c++20", *compile_flags, "-Wall", "-Wno-unknown-pragmas", "-fvisibility=hidden", "-fopenmp", *vector_flags(),
    ],
    extra_link_args=["-fopenmp", *link_flags],
)  # fmt: skip


def torch_npu_metadata() -> tuple[str, list[str]]:
    """Programs ask importlib.metadata for the version of torch_npu: a description of it goes into site-packages.

    It belongs to this distribution and leaves with it. `softnpu doctor` tells it from the real one by its version.
    """
    own = (ROOT / "src" / "softnpu" / "_version.py").read_text("utf-8").split('"')[-2]
    version = f"{torch.__version__.split('+')[0]}+softnpu{own}"
    folder = Path("build", "metadata", f"torch_npu-{version}.dist-info")
    (ROOT / folder).mkdir(parents=True, exist_ok=True)
    files = {
        "METADATA": f"Metadata-Version: 2.1\nName: torch_npu\nVersion: {version}\n"
        "Summary: torch_npu as softnpu emulates it\nRequires-Dist: softnpu\n",
        "INSTALLER": "softnpu\n",
    }
    for name, text in files.items():
        (ROOT / folder / name).write_text(text, "utf-8")
    place = sysconfig.get_path("purelib", vars={"base": "", "platbase": ""}).lstrip("/")
    return f"{place}/{folder.name}", [str(folder / name) for name in files]


class Described(Distribution):
    """An editable install asks for `has_data`, a name that setuptools itself does not define."""

    def has_data(self) -> bool:
        return self.has_data_files()


setup(
    distclass=Described,
    ext_modules=[extension],
    cmdclass={"build_ext": Build},
    data_files=[torch_npu_metadata()],
)
