"""`npu-smi`: the queries of the driver's tool that programs make, in its format, about the emulated devices.

It is installed as `npu-smi` with softnpu. Where the real tool is on the PATH before it, that one answers. Power and
temperature are 0: there is nothing to measure. What is not here says so and ends with exit code 1.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import click

from softnpu import __version__, chips, host, settings

_MIB = 2**20
_VERSION = f"{__version__}+softnpu"
_LINE = "+" + "-" * 96 + "+"
_PARTED = "+---------------------------+---------------+----------------------------------------------------+"
_DOUBLE = _PARTED.replace("-", "=")


@dataclass(frozen=True)
class Device:
    """A device as the tool names it: chips of the A3 family sit in pairs on one NPU."""

    npu: int
    chip: int
    number: int
    used: int  # MiB
    memory: int  # MiB


def _devices(running: list[host.Process]) -> list[Device]:
    memory = (settings.current().memory or chips.current().memory) // _MIB
    pair = 2 if _paired() else 1
    return [
        Device(n // pair, n % pair, n, sum(p.memory.get(n, 0) for p in running) // _MIB, memory)
        for n in settings.visible_devices()
    ]


def _paired() -> bool:
    return chips.current().family == "A3"


def _name() -> str:
    return "Ascend910" if _paired() else chips.current().name.removeprefix("Ascend")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(_VERSION, "-v", "--version", message="npu-smi version: %(version)s")
def main() -> None:
    """npu-smi of softnpu: the emulated devices, as the driver's tool shows the real ones."""
    try:
        settings.read()
    except ValueError as wrong:
        raise click.ClickException(str(wrong)) from None


@main.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-l", "listing", is_flag=True, help="List the NPUs.")
@click.option("-m", "mapping", is_flag=True, help="Map NPUs and chips to logical devices.")
@click.option("-t", "topic", help="One of: " + "board, common, health, memory, power, proc-mem, "
              "product, temp, topo, usages.")  # fmt: skip
@click.option("-i", "npu", type=int, help="The NPU.")
@click.option("-c", "chip", type=int, help="The chip of the NPU; without it, the NPU's first one.")
def info(
    listing: bool, mapping: bool, topic: str | None, npu: int | None, chip: int | None
) -> None:
    """The devices: a table of all, or one topic of one NPU."""
    running = host.processes()
    devices = _devices(running)
    if not devices:
        click.echo("no NPU: SOFTNPU=0, or ASCEND_RT_VISIBLE_DEVICES hides them all", err=True)
        sys.exit(1)
    if listing:
        lines = _listing(devices)
    elif mapping:
        lines = _mapping(devices)
    elif topic == "topo":
        lines = _topology(devices)
    elif topic is not None:
        lines = _topic(topic, _select(devices, npu, chip or 0), running, of_chip=chip is not None)
    else:
        lines = _summary(devices, running)
    click.echo("\n".join(lines))


def _select(devices: list[Device], npu: int | None, chip: int) -> Device:
    if npu is None:
        raise click.UsageError("-t needs the NPU: -i NUMBER")
    for device in devices:
        if (device.npu, device.chip) == (npu, chip):
            return device
    raise click.ClickException(f"there is no chip {chip} on an NPU {npu}")


# --- the table ------------------------------------------------------------------------------------------


def _row(first: str, second: str, third: str) -> str:
    return f"| {first:<26}| {second:<14}| {third:<51}|"


def _summary(devices: list[Device], running: list[host.Process]) -> Iterator[str]:
    yield _LINE
    yield f"| {f'npu-smi {_VERSION}':<33}{f'Version: {_VERSION} (emulated)':<62}|"
    yield _PARTED
    yield _row("NPU   Name", "Health", "Power(W)    Temp(C)           Hugepages-Usage(page)")
    yield _row(
        "Chip  Phy-ID" if _paired() else "Chip",
        "Bus-Id",
        "AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)",
    )
    yield _DOUBLE
    for device in devices:
        which = f"{device.chip:<6}{device.number}" if _paired() else str(device.chip)
        yield _row(f"{device.npu:<6}{_name()}", "OK", f"{'0.0':<12}{'0':<18}{'0':<5}/ 0")
        use = f"{device.used:<5}/ {device.memory}"
        yield _row(which, "NA", f"{'0':<12}{'0':<5}/ {'0':<11}{use}")
        yield _DOUBLE
    yield _PARTED
    yield _row("NPU     Chip", "Process id", f"{'Process name':<25}| Process memory(MB)")
    yield _DOUBLE
    for npu in sorted({device.npu for device in devices}):
        rows = [
            _row(
                f"{device.npu:<8}{device.chip}",
                str(process.pid),
                f"{process.name[:24]:<25}| {process.memory[device.number] // _MIB}",
            )
            for device in devices
            for process in running
            if device.npu == npu and device.number in process.memory
        ]
        yield from rows or [f"| {f'No running processes found in NPU {npu}':<95}|"]
        yield _DOUBLE


# --- lists and topics -----------------------------------------------------------------------------------


def _field(name: str, value: object) -> str:
    return f"\t{name:<31}: {value}"


def _listing(devices: list[Device]) -> Iterator[str]:
    numbers = sorted({device.npu for device in devices})
    yield _field("Total Count", len(numbers))
    for npu in numbers:
        yield ""
        yield _field("NPU ID", npu)
        yield _field("Chip Count", sum(device.npu == npu for device in devices))


def _mapping(devices: list[Device]) -> Iterator[str]:
    for row in (
        ("NPU ID", "Chip ID", "Chip Logic ID", "Chip Name"),
        *((d.npu, d.chip, d.number, f"Ascend {_name()}") for d in devices),
    ):
        yield "\t" + "".join(f"{value!s:<31}" for value in row).rstrip()


def _topology(devices: list[Device]) -> Iterator[str]:
    names = [f"NPU{device.number}" for device in devices]
    processors = _processors()
    yield "".join(f"{name:<11}" for name in ["", *names, "CPU Affinity"]).rstrip()
    for name in names:
        links = ["X" if name == other else "HCCS" for other in names]
        yield "".join(f"{cell:<11}" for cell in [name, *links, processors]).rstrip()
    yield ""
    yield "Legend:"
    yield ""
    yield "\tX    = Self"
    yield "\tHCCS = the link between NPUs (here: memory of the host)"


def _processors() -> str:
    """The processors of this process, as ranges: 0-3,8."""
    parts: list[list[int]] = []
    for number in sorted(os.sched_getaffinity(0)):
        if parts and parts[-1][-1] == number - 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)


def _board(of_chip: bool) -> dict[str, object]:
    """What the tool tells of a board, or of a chip on it (-c). From these programs put the chip's name together:

    type and name (Ascend + 910B3), or name and NPU name (Ascend910 + 9391), the latter for A3 and, without -c, for 950.
    """
    chip = chips.current()
    board: dict[str, object] = {
        "Product Name": chip.product, "Manufacturer": "softnpu (emulated)",
        "Software Version": _VERSION, "Firmware Version": "NA", "PCIe Bus Info": "NA",
    }  # fmt: skip
    if _paired():
        name, _, number = chip.name.partition("_")
        return board | ({"Chip Name": name, "NPU Name": number} if of_chip else {})
    if chip.family == "A5":
        return board | {"Chip Name": chip.name, "NPU Name": chip.name.removeprefix("Ascend")}
    of_its = {"Chip Type": "Ascend", "Chip Name": chip.name.removeprefix("Ascend")}
    return board | (of_its if of_chip else {})


def _topic(
    topic: str, device: Device, running: list[host.Process], of_chip: bool = True
) -> Iterator[str]:
    chip = chips.current()
    rate = round(100 * device.used / device.memory)
    fields: dict[str, dict[str, object]] = {
        "board": _board(of_chip),
        "common": {
            "HBM Capacity(MB)": device.memory, "HBM Usage Rate(%)": rate, "Aicore Usage Rate(%)": 0,
            "Aicore Count": chip.cube_cores, "NPU Real-time Power(W)": "0.0", "Temperature(C)": 0,
        },
        "health": {"Health": "OK"},
        "memory": {"DDR Capacity(MB)": 0, "HBM Capacity(MB)": device.memory},
        "power": {"NPU Real-time Power(W)": "0.0"},
        "product": {"Product Type": chip.product},
        "temp": {"NPU Temperature (C)": 0},
        "usages": {
            "DDR Capacity(MB)": 0, "DDR Usage Rate(%)": 0, "DDR Hugepages Total(page)": 0,
            "DDR Hugepages Usage Rate(%)": 0, "HBM Capacity(MB)": device.memory,
            "HBM Usage Rate(%)": rate, "Aicore Usage Rate(%)": 0, "Aicpu Usage Rate(%)": 0,
            "Ctrlcpu Usage Rate(%)": 0, "DDR Bandwidth Usage Rate(%)": 0,
            "HBM Bandwidth Usage Rate(%)": 0,
        },
    }  # fmt: skip
    if topic == "proc-mem":
        found: dict[str, object] = {
            f"Process id:{process.pid}": f"Process name:{process.name} "
            f"Process memory(MB):{process.memory[device.number] // _MIB}"
            for process in running
            if device.number in process.memory
        }
    elif topic in fields:
        found = fields[topic]
    else:
        known = ", ".join(sorted([*fields, "proc-mem", "topo"]))
        raise click.ClickException(f"-t {topic} is not emulated; what is: {known}")
    yield _field("NPU ID", device.npu)
    yield _field("Chip Count", 2 if _paired() else 1)
    yield ""
    for name, value in found.items():
        yield _field(name, value)
    yield _field("Chip ID", device.chip)
