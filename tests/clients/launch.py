"""Starts the command-line tools of this environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"


def tool(*command: object, **environment: str) -> str:
    """What the tool said; it must have ended well."""
    beside = str(Path(sys.executable).parent)
    settings = {**os.environ, **environment}
    settings["PATH"] = os.pathsep.join([beside, settings["PATH"]])
    settings.setdefault("OMP_NUM_THREADS", "1")
    done = subprocess.run(
        [str(part) for part in command], env=settings, check=False, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout
