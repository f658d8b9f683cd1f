"""Without the programs there is nothing to collect: `make test` has another environment than `make clients`."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

PROGRAMS = ("accelerate", "peft", "safetensors", "torchmetrics", "transformers")

if any(importlib.util.find_spec(name) is None for name in PROGRAMS):
    collect_ignore_glob = ["test_*.py"]

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # every model is made here, from a seed


@pytest.fixture
def program() -> Path:
    """The folder of the scripts that the launchers start."""
    return Path(__file__).parent / "programs"
