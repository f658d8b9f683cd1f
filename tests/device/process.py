"""Runs Python in a fresh process: for settings, forks and crashes, which this process cannot try on itself."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

from tests import PYTHONPATH

OWN = ("SOFTNPU", "SOFTNPU_", "ASCEND_", "PYTORCH_NPU_ALLOC_CONF", "RANK", "LOCAL_RANK")


def run_python(
    code: str, timeout: float = 120, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs `code` with the repository on the path and only the settings given here."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(OWN)}
    clean["PYTHONPATH"] = PYTHONPATH
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def output(code: str, **environment: str) -> str:
    """What `code` prints; the process must end well."""
    done = run_python(code, **environment)
    assert done.returncode == 0, f"exit code {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip()
