"""A directory that looks like CANN's, for programs that read ASCEND_HOME_PATH, ASCEND_TOOLKIT_HOME and ASCEND_OPP_PATH.

`import torch_npu` sets those of the three that are unset. The directory lies in the user's folder of temporary files
and holds the version files that programs parse, the folders that they list, the headers of `torch_npu/include`, and
in `lib64` the libraries that build files name, all of them libopapi.so of `torch_npu/lib`; it has no CANN in it.
SOFTNPU_CANN_HOME names another directory, or 0: then the variables stay as they are. Compilers and loaders believe what
lies there: where somebody else could have put it, the directory is a new one of this process.
"""

from __future__ import annotations

import functools
import os
import platform
import tempfile
import warnings
from collections.abc import MutableMapping
from pathlib import Path

from softnpu import ownership, settings

_PACKAGES = Path(__file__).resolve().parent.parent
_PARTS = ("compiler", "runtime", "hccl", "toolkit", "opp", "opp_kernel")
#: what extensions are linked with
_LIBRARIES = ("libascendcl.so", "libopapi.so", "libnnopbase.so")
_FOLDERS = ("bin", "lib64", "opp/vendors", "opp/built-in", "tools", "python/site-packages")


def export(environment: MutableMapping[str, str] = os.environ) -> None:
    """Sets the variables that are unset."""
    chosen = settings.current()
    if not chosen.enabled or chosen.cann_home == "0":
        return
    if "ASCEND_HOME_PATH" not in environment:
        try:
            environment["ASCEND_HOME_PATH"] = chosen.cann_home or str(home())
        except OSError as wrong:  # nowhere to write
            warnings.warn(f"softnpu: ASCEND_HOME_PATH is not set: {wrong}", stacklevel=2)
            return
    top = environment["ASCEND_HOME_PATH"]
    environment.setdefault("ASCEND_TOOLKIT_HOME", top)
    environment.setdefault("ASCEND_OPP_PATH", os.path.join(top, "opp"))


def home() -> Path:
    """The directory for the CANN version of the settings; made at the first call."""
    version = settings.current().cann_version
    top = _parent() / f"cann-{version}"
    files = _files(version, top)
    libraries = [f"lib64/{name}" for name in _LIBRARIES]
    if all((top / name).exists() for name in (*files, "include", *libraries)):
        return top
    for folder in _FOLDERS:
        (top / folder).mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(
            f"{path.name}.{os.getpid()}"
        )  # several processes may start at once
        unfinished.write_text(text, "utf-8")
        unfinished.replace(path)
    _link(top / "include", _PACKAGES / "torch_npu" / "include" / "third_party" / "acl" / "inc")
    for name in _LIBRARIES:
        _link(top / "lib64" / name, _PACKAGES / "torch_npu" / "lib" / "libopapi.so")
    return top


@functools.cache
def _parent() -> Path:
    """The user's folder of temporary files, or one of this process if others may write there."""
    folder = Path(tempfile.gettempdir()) / f"softnpu-{os.geteuid()}"
    try:
        ownership.make_private(folder)
        return folder
    except OSError as wrong:
        private = ownership.private_folder("softnpu-cann-")
        warnings.warn(f"softnpu: {wrong}; {private} is used instead", stacklevel=2)
        return private


def _files(version: str, top: Path) -> dict[str, str]:
    machine = platform.machine()
    plain = f"Version={version}\nversion_dir={version}\n"
    install = (
        f"package_name=Ascend-cann-toolkit\nversion={version}\ninnerversion=softnpu\narch={machine}\nos=linux\n"
        f"path={top}\n"
    )
    files = {"version.info": plain, "README": f"{__doc__}\n", "set_env.sh": _set_env(top)}
    files |= {f"{part}/version.info": plain for part in _PARTS}
    return files | {
        f"{machine}-linux/ascend_toolkit_install.info": install,
        "version.cfg": f"# version: 1.0\nruntime_running_version=[{version}:{version}]\n",
    }


def _set_env(top: Path) -> str:
    return (
        f'export ASCEND_TOOLKIT_HOME="{top}"\nexport ASCEND_HOME_PATH="{top}"\n'
        f'export ASCEND_OPP_PATH="{top}/opp"\n'
    )


def _link(link: Path, target: Path) -> None:
    if link.is_symlink() and link.readlink() == target:
        return
    unfinished = link.with_name(f"{link.name}.{os.getpid()}")
    unfinished.symlink_to(target)
    unfinished.replace(link)
