"""A plugin of pytest for `make sanitize`: device memory comes from the heap, so that AddressSanitizer knows where it ends."""

from __future__ import annotations

from pathlib import Path

from tests.fuzz.guard import Guard, compile_guard


def pytest_sessionstart() -> None:
    from softnpu import _C

    if "sanitize" not in Path(_C.__file__).parts:
        raise RuntimeError(f"{_C.__file__} is not the build with sanitizers")
    library = compile_guard()
    if library is None:
        raise RuntimeError("no C compiler")
    Guard(library, limit=16 << 30, kind="heap")
