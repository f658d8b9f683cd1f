"""Inductor's output as text: kept by caches, and run again in another process."""

from __future__ import annotations

import contextlib
import os
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

_FOLDER = "TORCHINDUCTOR_CACHE_DIR"


@contextlib.contextmanager
def compiled_in(folder: Path) -> Iterator[None]:
    """Libraries that Inductor compiles meanwhile go to the folder, all of them anew, closed to other users."""
    from torch._inductor import config, utils

    with _libraries_in(folder), config.patch({"cpp_cache_precompile_headers": False}):
        utils.clear_caches()
        yield


@contextlib.contextmanager
def _libraries_in(folder: Path) -> Iterator[None]:
    before, mask = os.environ.get(_FOLDER), os.umask(0o077)
    folder.mkdir(parents=True, exist_ok=True)
    os.environ[_FOLDER] = str(folder)
    try:
        yield
    finally:
        os.umask(mask)
        if before is None:
            del os.environ[_FOLDER]
        else:
            os.environ[_FOLDER] = before


def load_source(
    source: str, constants: dict[str, torch.Tensor], folder: Path
) -> Callable[[list[Any]], Any]:
    """The function that the text defines, with its libraries from the folder."""
    module = types.ModuleType("softnpu_cached_graph")
    module.__file__ = str(folder / "compiled_graph.py")
    vars(module).update(constants)
    with _libraries_in(folder):
        exec(compile(source, module.__file__, "exec"), vars(module))
    return module.call
