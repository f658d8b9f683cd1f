"""The test suite; `PYTHONPATH` is what a process started by a test needs to import the packages and the tests."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHONPATH = os.pathsep.join([str(ROOT), str(ROOT / "src")])
