"""Nothing reads outside its tensors: kernels run between guard pages, with wild numbers and checks switched off."""

import subprocess
import sys

from torch_npu.ops._registry import operators


def test_guard_pages():
    result = subprocess.run(
        [sys.executable, "-m", "tests.ops.vision._guarded"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    folder = [o for o in operators.values() if o.folder == "vision"]
    assert int(result.stdout.split()[-1]) >= 8 * len(folder)


def test_guard_pages_guard():
    """Reading one element too far ends the process."""
    code = (
        "import ctypes, torch\n"
        "from tests.ops.vision._pages import guarded\n"
        "t = guarded(torch.zeros(8), True)\n"
        "print(t.sum().item(), flush=True)\n"
        "ctypes.c_float.from_address(t.data_ptr() + 32).value\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=600
    )
    assert result.stdout.strip() == "0.0" and result.returncode < 0
