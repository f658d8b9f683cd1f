"""The `softnpu` command: what the device is, which chips it can be, what works, and whether this machine is fit.

The command stands above all floors, so it imports torch_npu, but only inside the commands that need it.
"""

from __future__ import annotations

import collections
import dataclasses
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from softnpu import __version__, chips, settings
from softnpu.report import report
from softnpu.run import run

_GIB = 2**30
_ROOT = Path(__file__).resolve().parent.parent


@click.group(
    help="softnpu: torch_npu and TorchAir without an NPU.",
    epilog="Exit codes: 0 all is well, 1 a failure (`doctor`: an unfit machine), 2 wrong usage; `run` has the "
    'program\'s. Shell completion: eval "$(_SOFTNPU_COMPLETE=bash_source softnpu)", or zsh_source, fish_source.',
)
@click.version_option(__version__)
def main() -> None:
    """Wrong settings are told in one line, by every command."""
    try:
        settings.read()
    except ValueError as wrong:
        raise click.ClickException(str(wrong)) from None


main.add_command(report)
main.add_command(run)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=index == 0)
    return table


def _show(table: Table) -> None:
    Console().print(table)


def _as_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2))


_json_option = click.option("--json", "as_json", is_flag=True, help="For programs to read.")


# --- info and chips -------------------------------------------------------------------------------------


@main.command()
@_json_option
def info(as_json: bool) -> None:
    """The emulated devices, their settings and the host."""
    torch_npu = importlib.import_module("torch_npu")
    registry = importlib.import_module("torch_npu.ops._registry")
    torch = importlib.import_module("torch")
    chosen, chip = settings.current(), chips.current()
    memory = chosen.memory or chip.memory
    if as_json:
        _as_json(
            {
                "versions": {
                    "softnpu": __version__,
                    "torch_npu": torch_npu.__version__,
                    "torch": str(torch.__version__),
                },
                "emulated": True,
                "chip": dataclasses.asdict(chip),
                "devices": [
                    {"id": i, "name": chip.name, "memory": memory}
                    for i in settings.visible_devices()
                ],
                "operators": len(registry.operators),
                "settings": dataclasses.asdict(chosen),
            }
        )
        return
    table = _table("softnpu", "what", "value")
    rows = {
        "versions": f"softnpu {__version__}, torch_npu {torch_npu.__version__}, torch {torch.__version__}",
        "devices": f"{torch_npu.npu.device_count()} x {chip.name} ({chip.product}, family {chip.family}), emulated",
        "memory of each": f"{memory / _GIB:.4g} GiB",
        "cores of each": f"{chip.cube_cores} cube, {chip.vector_cores} vector",
        "operators": f"{len(registry.operators)} schemas, {len(registry.exports())} names in torch_npu",
        "host": f"{platform.machine()}, {os.cpu_count()} cores, {_host_memory() / _GIB:.3g} GiB, "
        f"{torch.backends.cpu.get_cpu_capability()}",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    _show(table)
    table = _table("settings", "variable", "value")
    for variable, (name, _) in settings._READERS.items():
        value = dataclasses.asdict(chosen)[name]
        table.add_row(
            variable,
            "the chip's"
            if value is None
            else str(int(value) if isinstance(value, bool) else value),
        )
    _show(table)


@main.command(name="chips")
@_json_option
def list_chips(as_json: bool) -> None:
    """The chips that SOFTNPU_SOC takes."""
    if as_json:
        _as_json([dataclasses.asdict(chips.get(name)) for name in chips.names()])
        return
    table = _table(
        "chips", "SOFTNPU_SOC", "product", "family", "memory", "cube", "vector", "fp16 peak"
    )
    for name in chips.names():
        chip = chips.get(name)
        mark = " *" if name == settings.current().soc else ""
        table.add_row(
            name + mark,
            chip.product,
            chip.family,
            f"{chip.memory / _GIB:g} GiB",
            str(chip.cube_cores),
            str(chip.vector_cores),
            f"{chip.peak['float16'] / 1e12:g} TFLOPS",
        )
    _show(table)


# --- coverage -------------------------------------------------------------------------------------------


@main.command()
@click.option(
    "--absent",
    is_flag=True,
    help="List the documented names that are absent or partial, with the reason.",
)
@_json_option
def coverage(absent: bool, as_json: bool) -> None:
    """Which of upstream's documented names work (needs a source checkout)."""
    if not (_ROOT / "api" / "upstream.json").exists():
        raise click.ClickException(
            "the list of upstream's names is only in a source checkout of softnpu"
        )
    sys.path.insert(0, str(_ROOT))
    documented = importlib.import_module("tools.coverage").seeds()
    if as_json:
        keys = ("name", "table", "status", "note")
        wanted = (e for e in documented if not absent or e.status != "works")
        _as_json([{key: getattr(e, key) for key in keys} for e in wanted])
        return
    if absent:
        table = _table("absent and partial", "name", "state", "reason")
        for entry in documented:
            if entry.status != "works":
                table.add_row(entry.name, entry.status, entry.note)
        _show(table)
        return
    table = _table("documented names", "table", "works", "partial", "absent")
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for entry in documented:
        counts[entry.table][entry.status] += 1
        counts["all"][entry.status] += 1
    for name in [*(n for n in counts if n != "all"), "all"]:
        table.add_row(name, *(str(counts[name][s]) for s in ("works", "partial", "absent")))
    _show(table)


# --- doctor ---------------------------------------------------------------------------------------------


@main.command()
def doctor() -> None:
    """Whether this machine and installation are fit; exit code 1 if not."""
    table = _table("softnpu doctor", "check", "state", "found")
    healthy = True
    for name, check in _CHECKS.items():
        good, found = check()
        healthy &= good
        table.add_row(name, "[green]good[/green]" if good else "[red]bad[/red]", found)
    _show(table)
    sys.exit(0 if healthy else 1)


def _python() -> tuple[bool, str]:
    return sys.version_info >= (3, 11), platform.python_version()


def _torch() -> tuple[bool, str]:
    version = importlib.metadata.version("torch")
    return version.split("+")[0] == "2.13.0", f"{version} (2.13.0 is needed)"


def _extension() -> tuple[bool, str]:
    try:
        importlib.import_module("torch")
        return True, str(Path(importlib.import_module("softnpu._C").__file__ or "").name)
    except ImportError as error:
        return False, f"{error}; build it with: pip install --no-build-isolation -e ."


def _which_torch_npu() -> tuple[bool, str]:
    spec = importlib.util.find_spec("torch_npu")
    place = Path(spec.origin).parent if spec and spec.origin else None
    return place == _ROOT / "torch_npu", f"import torch_npu takes {place}"


def _real_torch_npu() -> tuple[bool, str]:
    """The vendor's distribution beside this one: two packages would own the same files."""
    others = list(_other_distributions())
    if others:
        return False, f"{', '.join(others)} is installed beside softnpu: uninstall one of them"
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
    return (
        True,
        f"{', '.join(found)}: real cards, which softnpu does not use"
        if found
        else "none, as expected",
    )


def _memory() -> tuple[bool, str]:
    """Device memory is reserved, not committed; a kernel that forbids overcommitment refuses that."""
    mode = Path("/proc/sys/vm/overcommit_memory")
    strict = mode.exists() and mode.read_text().strip() == "2"
    text = f"{_host_memory() / _GIB:.3g} GiB on the host"
    return not strict, text + (
        "; vm.overcommit_memory=2 forbids large reservations" if strict else ""
    )


def _compute() -> tuple[bool, str]:
    """A product, a gradient and an operator on the device, against the CPU."""
    try:
        torch, torch_npu = importlib.import_module("torch"), importlib.import_module("torch_npu")
    except ImportError as error:
        return False, f"import torch_npu fails: {error}"
    if not torch_npu.npu.is_available():
        return True, "SOFTNPU=0: there is no device"
    host = torch.randn(8, 16)
    x = host.npu().requires_grad_()
    y, _ = torch_npu.npu_rms_norm(x @ x.t(), torch.ones(8, device="npu"))
    y.sum().backward()
    product = host @ host.t()
    want = product * torch.rsqrt(product.square().mean(-1, keepdim=True) + 1e-6)
    good = torch.allclose(y.cpu(), want, atol=1e-5) and x.grad is not None
    return (
        good,
        "matmul, npu_rms_norm and a gradient agree with the CPU"
        if good
        else "results differ from the CPU",
    )


def _host_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


_CHECKS: dict[str, Callable[[], tuple[bool, str]]] = {
    "Python": _python,
    "torch": _torch,
    "extension": _extension,
    "torch_npu": _which_torch_npu,
    "other packages": _real_torch_npu,
    "cards": _cards,
    "memory": _memory,
    "computation": _compute,
}


if __name__ == "__main__":
    main()
