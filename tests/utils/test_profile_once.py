"""torch_npu.utils.profiler: one step is profiled, then the program ends."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys, torch, torch_npu
from torch_npu.utils.profiler import Profile
profile = Profile(start_step=2, save_path=sys.argv[1], profile_type=sys.argv[2])
assert Profile() is profile
for step in range(5):
    profile.start()
    (torch.ones(4, device="npu") + 1).cpu()
    print("step", step, flush=True)
    profile.end()
"""


@pytest.mark.parametrize("kind,pattern", [("TORCH", "torch_prof_*.json"), ("ASCEND_PROFILER", "*")])
def test_second_step(tmp_path, kind, pattern):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), kind], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    steps = [line for line in done.stdout.splitlines() if line.startswith("step")]
    assert steps == ["step 0", "step 1"]
    assert "Exception in RecordFunction callback" not in done.stderr
    assert list(tmp_path.glob(pattern))


def test_wrong_use():
    from torch_npu.utils import profiler

    made = profiler.Singleton(dict)
    assert made(a=1) is made(b=2)
    profile = profiler.Profile()
    with pytest.raises(RuntimeError, match="needs start"):
        profile.end()
