"""torchair.inference's caches under upstream's module name, and the two classes by which programs find and drop them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchair.configs.compiler_config import CompilerConfig
from torchair.inference import _store
from torchair.inference._cache import cache_compile, readable_cache

__all__ = ["CompiledModel", "ModelCacheSaver", "cache_compile", "readable_cache"]


class CompiledModel:
    """A file that cache_compile wrote."""

    FILE = _store.FILE

    def __init__(self, path: str):
        self.path = str(path)
        self.meta = _store.read(Path(path))["meta"]

    @staticmethod
    def get_cache_bin(
        func: Callable[..., Any],
        *,
        config: CompilerConfig | None = None,
        dynamic: bool = True,
        cache_dir: str | None = None,
        global_rank: int | None = None,
        tp_rank: int | None = None,
        pp_rank: int | None = None,
        ge_cache: bool = False,
        **kwargs: Any,
    ) -> str:
        """The path of the file that cache_compile with these arguments reads and writes."""
        made: Any = cache_compile(
            func,
            config=config,
            dynamic=dynamic,
            cache_dir=cache_dir,
            global_rank=global_rank,
            tp_rank=tp_rank,
            pp_rank=pp_rank,
            ge_cache=ge_cache,
            **kwargs,
        )
        return str(made.path.resolve())

    @classmethod
    def load(cls, cache_bin: str) -> CompiledModel:
        """Opens such a file; raises FileNotFoundError, or BadCache if it is not one."""
        return cls(cache_bin)

    def readable(self, print_output: bool = True, file: str | None = None) -> str:
        """The file's content as text."""
        return readable_cache(self.path, print_output, file)


class ModelCacheSaver:
    """Writes such files; programs call it to remove them."""

    @classmethod
    def remove_cache(cls, cache_bin: str) -> None:
        """Removes a file or a folder of caches, if it is there."""
        path = Path(cache_bin)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
