"""Builds the one extension, src/softnpu/_C, from everything under csrc but LIBRARIES; those from a folder each, with the
headers that torch_npu ships; and describes torch_npu to importlib.metadata.

The kernels (csrc/kernels) are compiled once for each of BUILDS and chosen from at run time, so that the result starts on
every processor of its kind; ninja runs the compiler, with precompiled headers and several files at a time. Objects are kept
in build/, by versions of torch and Python, so that only what changed is compiled.
"""

import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

# The package installed before may not fit this tree.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

ROOT = Path(__file__).resolve().parent

try:
    import torch
except ImportError as error:
    raise SystemExit(
        f"softnpu is built against the torch that it will run with, which cannot be imported here ({error}). "
        "Install it first, for example: pip install torch==2.13.0"
    ) from error
from setuptools import Distribution, Extension, setup
from setuptools.command.build_ext import build_ext
from torch.utils.cpp_extension import include_paths, library_paths

sys.path.insert(0, str(ROOT / "src"))  # these modules import no torch
from softnpu import torch_versions
from softnpu._version import __version__ as OWN

#: the torch that this build is for: 2.10.0 of 2.10.0+cu128
TORCH = torch_versions.plain(torch.__version__)
if not torch_versions.supported(TORCH):
    raise SystemExit(
        f"softnpu supports torch {torch_versions.SUPPORTED}, but torch {TORCH} is installed."
    )
#: `make wheels` builds one for each torch, whose version says which: 0.1.0+torch2.10.0
VERSION = f"{OWN}+torch{TORCH}" if "SOFTNPU_LABEL" in os.environ else OWN

#: what `make sanitize` asks g++ for, e.g. address,undefined; its objects are kept apart
SANITIZER = os.environ.get("SOFTNPU_SANITIZER", "")

#: the levels of optimization: of the kernels that run, and of all else. A processor without AVX2 gets kernels of the second.
FAST = [] if SANITIZER else ["-O3"]
PLAIN = [] if SANITIZER else ["-O2"]

#: builds of the kernels beside the one for any processor, in the terms of at::vec
_AVX2 = ["-mavx2", "-mfma", "-mf16c", "-DCPU_CAPABILITY=AVX2", "-DCPU_CAPABILITY_AVX2"]
_AVX512 = [
    *("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma", "-mf16c"),
    *("-DCPU_CAPABILITY=AVX512", "-DCPU_CAPABILITY_AVX512"),
]
# gcc's own headers for AVX-512 and at::vec use what they call undefined on purpose.
_QUIET = ["-Wno-uninitialized", "-Wno-maybe-uninitialized"]
BUILDS = (
    {"avx2": [*_AVX2, *_QUIET, *FAST], "avx512": [*_AVX512, *_QUIET, *FAST]}
    if platform.machine() == "x86_64" and not SANITIZER
    else {}
)
DEFAULT = ["-DCPU_CAPABILITY=DEFAULT", "-DCPU_CAPABILITY_DEFAULT", *(PLAIN if BUILDS else FAST)]
DEFAULT += ["-DSOFTNPU_ONE_BUILD"] if SANITIZER else []  # one source, looked at once


def optimization() -> tuple[list[str], list[str]]:
    """Flags of the compiler, besides the level, and of the linker."""
    if not SANITIZER:
        return ["-g0", "-DNDEBUG"], []
    # vptr checks need type information that PyTorch's libraries keep to themselves.
    checks = [f"-fsanitize={SANITIZER}", "-fno-sanitize=vptr"]
    # NDEBUG as PyTorch was built: without it classes of its headers (RecordFunction) have other fields than in its libraries.
    return ["-O1", "-g1", "-DNDEBUG", "-fno-omit-frame-pointer", *checks], checks


def torch_flags() -> list[str]:
    """What makes our C++ fit torch's: its headers, and the types that its Python module knows."""
    flags = [f"-I{ROOT / 'csrc'}", *(f"-isystem{path}" for path in include_paths())]
    flags += [f"-isystem{sysconfig.get_path('include')}", "-DTORCH_API_INCLUDE_EXTENSION_H"]
    flags += [
        "-DTORCH_EXTENSION_NAME=_C",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
    ]
    for name in ("COMPILER_TYPE", "STDLIB", "BUILD_ABI"):  # until pybind11 went without them
        value = getattr(torch._C, f"_PYBIND11_{name}", None)
        flags += [f'-DPYBIND11_{name}="{value}"'] if value is not None else []
    return flags


#: how many lines of csrc are compiled together, unless one file has more; 1 compiles each file by itself, which is faster
#: for whoever changes one file after another
TOGETHER = int(os.environ.get("SOFTNPU_TOGETHER", "2000"))

#: libraries of their own, each from a folder of csrc, and where they stand beside the packages
LIBRARIES = ("opapi", "op_plugin_atb")
BESIDE = Path("torch_npu", "lib")


class Ninja:
    """The rules by which ninja builds the extension in a folder."""

    def __init__(self, folder: Path, output: Path) -> None:
        self.folder, self.output = folder, output
        self.compiler = os.environ.get("CXX", "g++")
        compile_flags, self.link_flags = optimization()
        self.flags = [
            "-std=c++20",
            *compile_flags,
            "-Wall",
            "-Wno-unknown-pragmas",
            "-Wno-subobject-linkage",
            "-fPIC",
        ]
        self.flags += ["-fvisibility=hidden", "-fopenmp", *torch_flags()]
        self.lines: list[str] = []
        self.objects: list[Path] = []

    @property
    def precompiles(self) -> bool:
        """ccache does better without precompiled headers."""
        found = shutil.which(self.compiler.split()[0]) or ""
        return "ccache" not in str(Path(found).resolve())

    def precompile(self, name: str, header: str, flags: list[str]) -> tuple[list[str], str]:
        """Flags that use a precompiled header, and what has to be built before."""
        if not self.precompiles:
            return flags, ""
        copy = self.folder / "headers" / name / "precompiled.h"
        self.rule("header", ROOT / header, Path(f"{copy}.gch"), flags)
        return [
            *flags,
            "-Winvalid-pch",
            f"-include {shlex.quote(str(copy))}",
        ], f" | {_path(copy)}.gch"

    def rule(
        self, rule: str, source: Path, output: Path, flags: list[str], before: str = ""
    ) -> None:
        self.lines += [
            f"build {_path(output)}: {rule} {_path(source)}{before}",
            f"  flags = {' '.join(flags)}",
        ]

    def compile(self, sources: list[Path], folder: str, flags: list[str], before: str = "") -> None:
        for joined in self.join(sources, folder):
            target = joined.with_suffix(".o")
            self.rule("object", joined, target, flags, before)
            self.objects.append(target)

    def join(self, sources: list[Path], folder: str) -> list[Path]:
        """Files that include the sources, some at a time: what the headers of PyTorch cost, a file of fifty lines pays as
        one of a thousand does."""
        together: list[list[Path]] = []
        lines = 0
        for source in sources:
            length = source.read_text("utf-8").count("\n")
            if not together or lines + length > TOGETHER or area(source) != area(together[-1][0]):
                together.append([])
                lines = 0
            together[-1].append(source)
            lines += length
        names = []
        for group in together:
            first = group[0].relative_to(ROOT / "csrc")
            names.append(self.folder / folder / first)
            names[-1].parent.mkdir(parents=True, exist_ok=True)
            text = "".join(f'#include "{source}"\n' for source in group)
            if not names[-1].exists() or names[-1].read_text("utf-8") != text:
                names[-1].write_text(text, "utf-8")
        return names

    def library(self, name: str) -> Path:
        """One of LIBRARIES, which programs find by its name; it uses the headers that C++ extensions use."""
        headers = ROOT / "src" / "torch_npu" / "include"
        flags = [f"-I{headers}", f"-I{headers / 'third_party' / 'acl' / 'inc'}", "-O1"]
        objects = []
        for joined in self.join(sorted((ROOT / "csrc" / name).glob("*.cpp")), ""):
            objects.append(joined.with_suffix(".o"))
            self.rule("object", joined, objects[-1], flags)
        output = self.folder / f"lib{name}.so"
        self.lines += [
            f"build {_path(output)}: link {' '.join(map(_path, objects))}",
            f"  flags = -Wl,-soname,{output.name}",
        ]
        return output

    def write(self) -> Path:
        """build.ninja. Objects of the DEFAULT build come first: of a function that several have, the linker takes
        the first one, which every processor can run."""
        every = sorted((ROOT / "csrc").rglob("*.cpp"))
        every = [path for path in every if path.parent.name not in LIBRARIES]
        kernels = [path for path in every if path.parent.name == "kernels"]
        device = [path for path in every if path.parent.name == "device"]
        for name in LIBRARIES:  # they do not wait for a precompiled header
            self.library(name)
        self.compile(device, "default", DEFAULT)
        with_torch = self.precompile("default", "csrc/torch/precompiled.h", DEFAULT)
        self.compile([path for path in every if path not in device], "default", *with_torch)
        for name, flags in BUILDS.items():
            self.compile(kernels, name, *self.precompile(name, "csrc/kernels/precompiled.h", flags))
        libraries = [
            *(f"-L{path}" for path in library_paths()),
            "-lc10",
            "-ltorch",
            "-ltorch_cpu",
            "-ltorch_python",
        ]
        head = [
            f"cxx = {self.compiler}",
            f"common = {' '.join(shlex.quote(flag) for flag in self.flags)}",
            *("rule object", "  command = $cxx $common $flags -MMD -MF $out.d -c $in -o $out"),
            *("  deps = gcc", "  depfile = $out.d"),
            *(
                "rule header",
                "  command = $cxx $common $flags -MMD -MF $out.d -x c++-header $in -o $out",
            ),
            *("  deps = gcc", "  depfile = $out.d"),
            f"rule link\n  command = $cxx -shared -fopenmp {' '.join(self.link_flags)} $flags @$out.rsp -o $out "
            + " ".join(shlex.quote(flag) for flag in libraries),
            *("  rspfile = $out.rsp", "  rspfile_content = $in"),
        ]
        tail = [
            f"build {_path(self.output)}: link {' '.join(_path(path) for path in self.objects)}"
        ]
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / "build.ninja"
        file.write_text("\n".join([*head, *self.lines, *tail]) + "\n", "utf-8")
        return file


def area(source: Path) -> str:
    """Its folder of csrc."""
    return source.relative_to(ROOT / "csrc").parts[0]


def _path(path: Path) -> str:
    """A path as ninja reads it."""
    return str(path).replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


class Build(build_ext):
    """Builds with ninja, in a folder for this torch and this Python."""

    def build_extension(self, ext: Extension) -> None:
        tag = f"torch{TORCH}-{sys.implementation.cache_tag}"
        folder = ROOT / "build" / Path("sanitize" if SANITIZER else "", f"objects-{tag}")
        output = folder / Path(self.get_ext_fullpath(ext.name)).name
        Ninja(folder, output).write()
        jobs = ["-j", os.environ["MAX_JOBS"]] if "MAX_JOBS" in os.environ else []
        subprocess.run([*_ninja(), "-C", str(folder), *jobs], check=True)
        target = Path(self.get_ext_fullpath(ext.name))
        _install(output, target)
        for name in LIBRARIES:
            _install(folder / f"lib{name}.so", target.parent.parent / BESIDE / f"lib{name}.so")

    def copy_extensions_to_source(self) -> None:
        """What an editable install and --inplace add to the build."""
        super().copy_extensions_to_source()
        for name in LIBRARIES:
            beside = BESIDE / f"lib{name}.so"
            _install(Path(self.build_lib) / beside, ROOT / "src" / beside)


def _install(built: Path, target: Path) -> None:
    """A new file: a process that has loaded the old one keeps it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(target.name + ".new")
    shutil.copy(built, fresh)
    fresh.replace(target)


def _ninja() -> list[str]:
    """The package's program before any other: two versions of ninja do not read each other's logs."""
    if importlib.util.find_spec("ninja"):
        return [sys.executable, "-m", "ninja"]
    if shutil.which("ninja"):
        return ["ninja"]
    raise SystemExit("softnpu is built with ninja, which is not installed: pip install ninja")


# The sources are Ninja's affair; setuptools asks for a list that is not empty.
extension = Extension("softnpu._C", ["csrc/torch/runtime/module.cpp"], language="c++")


def torch_npu_metadata() -> tuple[str, list[str]]:
    """Programs ask importlib.metadata for the version of torch_npu: a description of it goes into site-packages.

    It belongs to this distribution and leaves with it. `softnpu doctor` tells it from the real one by its version.
    """
    release = os.environ.get("TORCH_NPU_RELEASE", TORCH)
    if not re.fullmatch(re.escape(TORCH) + r"(\.post\d+)?", release):
        raise SystemExit(
            f"TORCH_NPU_RELEASE must be {TORCH} or a post-release of it, but is {release!r}"
        )
    version = torch_versions.full(release)
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


#: the extension fits the torch that it was built with, and no other
REQUIRES = [
    f"torch=={TORCH}",
    "numpy",
    "click",
    "rich",
    "protobuf",
    "jinja2",
    'tomli; python_version < "3.11"',
]

setup(
    version=VERSION,
    distclass=Described,
    install_requires=REQUIRES,
    ext_modules=[extension],
    cmdclass={"build_ext": Build},
    data_files=[torch_npu_metadata()],
)
