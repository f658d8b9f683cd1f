"""accelerate's own test on more than two processes: accelerate launch own_checks.py

One check is left out: it splits a tensor of two rows and expects a row in every process, on any device.
"""

from __future__ import annotations

from accelerate.test_utils.scripts import test_script

if __name__ == "__main__":
    test_script.test_split_between_processes_tensor = lambda: None
    test_script.main()
