"""guard.c as the allocator of all devices of this process."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from pathlib import Path

LIMIT = 64 << 20  # bytes of one allocation
SOURCE = Path(__file__).with_name("guard.c")


def compile_guard() -> str | None:
    """The library's path, in a new private folder; None without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    library = Path(tempfile.mkdtemp(prefix="softnpu_fuzz_")) / "guard.so"
    subprocess.run(
        [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE)], check=True
    )
    return str(library)


class Guard:
    """From now on every allocation of the process lies between guard pages; or, with `kind` "heap", in the heap."""

    def __init__(self, library: str, limit: int, kind: str = "guard"):
        from softnpu import _C

        self.library = ctypes.CDLL(library)
        self.library.guard_damaged.restype = ctypes.c_long
        self.library.guard_limit(ctypes.c_size_t(limit))
        functions = (self.library[f"{kind}_allocate"], self.library[f"{kind}_free"])
        _C.set_plugin(*(ctypes.cast(f, ctypes.c_void_p).value for f in functions))

    def damaged(self) -> int:
        """How many allocations were freed since the last call whose surroundings were written to."""
        return self.library.guard_damaged()
