"""`softnpu info` and `softnpu chips`: the devices, who uses them, and what they could be."""

from __future__ import annotations

import dataclasses
import os
import platform
from typing import Any

import click
from rich.text import Text

from softnpu import __version__, chips, host, settings
from softnpu.cli import _output


@click.command()
@_output.json_option
def info(as_json: bool) -> None:
    """The emulated devices, the processes on them, the settings and the host."""
    found = _gather()
    if as_json:
        _output.show_json(found)
        return
    _show_devices(found)
    _show_processes(found["processes"])
    _show_rest(found)


def _gather() -> dict[str, Any]:
    import torch

    import torch_npu
    from torch_npu.ops import _registry as registry

    chosen, chip = settings.current(), chips.current()
    running = host.processes()
    return {
        "versions": {
            "softnpu": __version__,
            "torch_npu": torch_npu.__version__,
            "torch": str(torch.__version__),
        },
        "emulated": True,
        "chip": dataclasses.asdict(chip),
        "devices": [
            {
                "id": number,
                "name": chip.name,
                "memory": chosen.memory or chip.memory,
                "used": sum(process.memory.get(number, 0) for process in running),
            }
            for number in settings.visible_devices()
        ],
        "processes": [dataclasses.asdict(process) for process in running],
        "operators": len(registry.operators),
        "names": len(registry.exports()),
        "settings": dataclasses.asdict(chosen),
        "host": {
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "memory": host.memory(),
            "vector": torch.backends.cpu.get_cpu_capability(),
        },
    }


def _show_devices(found: dict[str, Any]) -> None:
    chip, versions = found["chip"], found["versions"]
    table = _output.table(
        f"softnpu {versions['softnpu']}, torch_npu {versions['torch_npu']}, torch {versions['torch']}: "
        f"{len(found['devices'])} x {chip['name']}, emulated",
        "device", "chip", "product", "cores", "memory used", "of",
    )  # fmt: skip
    for device in found["devices"]:
        table.add_row(
            f"npu {device['id']}",
            device["name"],
            f"{chip['product']} ({chip['family']})",
            f"{chip['cube_cores']} cube, {chip['vector_cores']} vector",
            f"{device['used'] / 2**20:.1f} MiB",
            f"{device['memory'] / _output.GIB:.4g} GiB",
        )
    _output.show(table)


def _show_processes(running: list[dict[str, Any]]) -> None:
    table = _output.table("processes", "device", "process", "name", "memory")
    for process in running:
        for device, held in process["memory"].items():
            table.add_row(
                f"npu {device}",
                str(process["pid"]),
                Text(process["name"]),
                f"{held / 2**20:.1f} MiB",
            )
        if not process["memory"]:
            what = process["note"] or "none"
            table.add_row("-", str(process["pid"]), Text(process["name"]), Text(what))
    if running:
        _output.show(table)
    else:
        click.echo("no process uses the devices\n")


def _show_rest(found: dict[str, Any]) -> None:
    there = found["host"]
    table = _output.table("settings", "what", "value")
    for variable, (name, _) in settings._READERS.items():
        value = found["settings"][name]
        shown = str(int(value) if isinstance(value, bool) else value)
        table.add_row(variable, "the chip's" if value is None else shown)
    table.add_row(
        "host",
        f"{there['machine']}, {there['cores']} cores, {there['memory'] / _output.GIB:.3g} GiB, "
        f"{there['vector']}",
    )
    table.add_row("operators", f"{found['operators']} schemas, {found['names']} names in torch_npu")
    _output.show(table)


@click.command(name="chips")
@_output.json_option
def list_chips(as_json: bool) -> None:
    """The chips that SOFTNPU_SOC takes."""
    if as_json:
        _output.show_json([dataclasses.asdict(chips.get(name)) for name in chips.names()])
        return
    table = _output.table(
        "chips", "SOFTNPU_SOC", "product", "family", "memory", "cube", "vector", "fp16 peak"
    )
    for name in chips.names():
        chip = chips.get(name)
        mark = " *" if name == settings.current().soc else ""
        table.add_row(
            name + mark,
            chip.product,
            chip.family,
            f"{chip.memory / _output.GIB:g} GiB",
            str(chip.cube_cores),
            str(chip.vector_cores),
            f"{chip.peak['float16'] / 1e12:g} TFLOPS",
        )
    _output.show(table)
