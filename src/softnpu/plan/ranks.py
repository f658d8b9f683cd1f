"""Runs a program for shapes alone, one process for each rank that is asked for, and gives back what each recorded."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from softnpu import run, settings
from softnpu.chips import Chip
from softnpu.plan.clock import ClockError, Topology
from softnpu.plan.recording import STAGES, Recording

INTERRUPTED = 130  # the exit code after Ctrl-C


@dataclass(frozen=True, slots=True)
class Job:
    """What to run: the command, the chip, and further settings of the environment."""

    command: list[str]
    chip: Chip
    settings: dict[str, str]
    distributed: bool  # whether the ranks see each other, as under torchrun
    stages: dict[tuple[int, str], bytes] = field(
        default_factory=dict
    )  # what stages of pipelines sent, by world and stage


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of a rank; without a recording it never used the device."""

    code: int
    recording: Recording | None


def python_command(program: str, module: bool, arguments: Sequence[str]) -> list[str]:
    """The program is a file or a module: a plan starts the ranks itself."""
    if module:
        return [sys.executable, "-m", program, *arguments]
    if not Path(program).is_file():
        hint = ""
        beside = str(Path(sys.executable).parent)
        if shutil.which(program) or shutil.which(program, path=beside):
            hint = (
                ": a plan starts the ranks itself, so give it the script (or -m MODULE) and --ranks"
            )
        raise ClockError(f"there is no file {program}{hint}")
    return [sys.executable, program, *arguments]


def check(chip: Chip, worlds: Sequence[int], chosen: Sequence[int]) -> None:
    """What no program can make good: figures that nobody published, ranks that do not fill servers or do not exist."""
    missing = [name for name, value in (
        ("memory", chip.memory), ("memory_bandwidth", chip.memory_bandwidth), ("cube_cores", chip.cube_cores),
        ("vector_cores", chip.vector_cores), ("peak float16", chip.peak.get("float16")),
    ) if not value]  # fmt: skip
    if missing:
        raise ClockError(f"chips.toml has no figure {missing[0]} of {chip.name}: none is published")
    for world in worlds:
        Topology.of(chip, world)
        beyond = [rank for rank in chosen if rank >= world]
        if beyond:
            raise ClockError(f"there is no rank {beyond[0]} among {world} ranks (0 to {world - 1})")


def environment_of(job: Job, ranks: int, rank: int) -> dict[str, str]:
    """The variables of one rank, as torchrun sets them."""
    found = {**os.environ, **job.settings}
    node = min(ranks, int(job.chip.links.get("node_devices", 1)))
    if not job.distributed:
        return found
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return found | {
        "WORLD_SIZE": str(ranks),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % node),
        "LOCAL_WORLD_SIZE": str(node),
        "GROUP_RANK": str(rank // node),
        "GROUP_WORLD_SIZE": str(ranks // node),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "softnpu_plan",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }


def run_rank(job: Job, ranks: int, rank: int, say: Callable[[str], None]) -> Ran:
    """One process of the program; `say` gets a few words on how far it is."""
    environment = environment_of(job, ranks, rank)
    settings.read(environment)
    with tempfile.TemporaryDirectory(prefix="softnpu_plan_") as name:
        directory = Path(name)
        (directory / STAGES).mkdir()
        for (world, stage), sent in job.stages.items():
            if world == ranks:
                (directory / STAGES / stage).write_bytes(sent)
        code = run.execute(
            job.command,
            run.observed(environment, directory, "softnpu.plan", "record"),
            lambda: say(_progress(directory)),
        )
        found = [Recording.read(path) for path in sorted(directory.glob("process_*.json"))]
        job.stages.update({(ranks, f.name): f.read_bytes() for f in (directory / STAGES).iterdir()})
    used = [one for one in found if one.events or one.launches]
    if not used:
        return Ran(code, None)
    most = max(used, key=lambda one: (one.peak_reserved, one.launches))
    if len(used) > 1:
        most.notes.append(f"{len(used)} processes of the program used the device; this is the largest one")  # fmt: skip
    return Ran(code, most)


def _progress(directory: Path) -> str:
    files = sorted(directory.glob("progress_*"))
    words = files[-1].read_text("utf-8").split() if files else []
    return f"{words[0]} steps, {words[1]} launches" if len(words) == 2 else "starting"
