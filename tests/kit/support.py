"""pytest with the plugin, in a process of its own."""

from __future__ import annotations

import os

from tests import PYTHONPATH


def run(pytester, monkeypatch, *arguments: str):
    packages = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([PYTHONPATH, packages]))
    monkeypatch.setenv("TESTED", str(os.getpid()))
    for variable in ("SOFTNPU_SOC", "SOFTNPU_DEVICES", "SOFTNPU_MEMORY", "SOFTNPU_STRICT"):
        monkeypatch.delenv(variable, raising=False)
    return pytester.runpytest_subprocess("-p", "softnpu.pytest_plugin", "-rA", *arguments)
