"""`softnpu doctor`: whether this machine and installation are fit."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from softnpu import host, python_versions, torch_versions
from softnpu.cli import _output

_ROOT = Path(__file__).resolve().parents[2]
#: the two own the same files, so one that is uninstalled takes some of the other's with it
_MEND = "pip uninstall torch-npu, then pip install --force-reinstall --no-deps softnpu (or the other way round)"


@click.command()
@_output.json_option
def doctor(as_json: bool) -> None:
    """Whether this machine and installation are fit; exit code 1 if not."""
    found = [(name, *check()) for name, check in _CHECKS.items()]
    if as_json:
        _output.show_json([{"check": n, "good": good, "found": text} for n, good, text in found])
    else:
        table = _output.table("softnpu doctor", "check", "state", "found")
        for name, good, text in found:
            table.add_row(name, "[green]good[/green]" if good else "[red]bad[/red]", text)
        _output.show(table)
    sys.exit(0 if all(good for _, good, _ in found) else 1)


def _python() -> tuple[bool, str]:
    return sys.version_info >= python_versions.OLDEST, platform.python_version()


def _torch() -> tuple[bool, str]:
    version = importlib.metadata.version("torch")
    return torch_versions.supported(version), f"{version} (supported: {torch_versions.SUPPORTED})"


def _compiler() -> tuple[bool, str]:
    """Building the extension and torch.compile (TorchAir too) need one; eager programs do not."""
    found = shutil.which("g++") or shutil.which("c++")
    if found:
        return True, found
    return False, "no g++ or c++: torch.compile and a build from source will fail"


def _extension() -> tuple[bool, str]:
    try:
        importlib.import_module("torch")
        built = importlib.import_module("softnpu._C")
        name = Path(built.__file__ or "").name
        return (
            True,
            f"{name}, for torch {built.torch_version}; kernels for {built.cpu_capability()}",
        )
    except ImportError as error:
        return False, f"{error}; build it with: pip install --no-build-isolation -e ."


def _which_torch_npu() -> tuple[bool, str]:
    spec = importlib.util.find_spec("torch_npu")
    place = Path(spec.origin).parent if spec and spec.origin else None
    own = place == _ROOT / "torch_npu"
    text = f"import torch_npu takes {place}, {'which is' if own else 'not'} softnpu's"
    return own, text if own else f"{text}: {_MEND}"


def _real_torch_npu() -> tuple[bool, str]:
    """The vendor's distribution beside this one: two packages would own the same files."""
    others = list(_other_distributions())
    if others:
        return False, f"{', '.join(others)} is installed beside softnpu: {_MEND}"
    return True, "no other torch_npu or torchair is installed"


def _other_distributions() -> Iterator[str]:
    for distribution in importlib.metadata.distributions():
        name = (distribution.metadata["Name"] or "").lower().replace("_", "-")
        if (
            name in ("torch-npu", "torchair", "npu-extension-for-pytorch")
            and "softnpu" not in distribution.version
        ):
            yield f"{name} {distribution.version}"


def _cards() -> tuple[bool, str]:
    found = sorted(str(p) for p in Path("/dev").glob("davinci[0-9]*"))
    if found:
        return True, f"{', '.join(found)}: real cards, which softnpu does not use"
    return True, "none, as expected"


def _memory() -> tuple[bool, str]:
    """Device memory is reserved, not committed; a kernel that forbids overcommitment refuses that."""
    mode = Path("/proc/sys/vm/overcommit_memory")
    strict = mode.exists() and mode.read_text().strip() == "2"
    text = f"{host.memory() / _output.GIB:.3g} GiB on the host"
    return not strict, text + (
        "; vm.overcommit_memory=2 forbids large reservations" if strict else ""
    )


def _compute() -> tuple[bool, str]:
    """A product, a gradient and an operator on the device, against the CPU."""
    try:
        import torch

        import torch_npu
    except ImportError as error:
        return False, f"import torch_npu fails: {error}"
    if not torch_npu.npu.is_available():
        return True, "SOFTNPU=0: there is no device"
    there = torch.randn(8, 16)
    x = there.to("npu").requires_grad_()
    y, _ = torch_npu.npu_rms_norm(x @ x.t(), torch.ones(8, device="npu"))
    y.sum().backward()
    product = there @ there.t()
    want = product * torch.rsqrt(product.square().mean(-1, keepdim=True) + 1e-6)
    if torch.allclose(y.cpu(), want, atol=1e-5) and x.grad is not None:
        return True, "matmul, npu_rms_norm and a gradient agree with the CPU"
    return False, "results differ from the CPU"


_CHECKS: dict[str, Callable[[], tuple[bool, str]]] = {
    "Python": _python,
    "torch": _torch,
    "compiler": _compiler,
    "extension": _extension,
    "torch_npu": _which_torch_npu,
    "other packages": _real_torch_npu,
    "cards": _cards,
    "memory": _memory,
    "computation": _compute,
}
