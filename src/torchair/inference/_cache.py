"""torchair.inference.cache_compile and readable_cache: a compiled function that the next process starts with."""

from __future__ import annotations

import dis
import functools
import io
import marshal
import os
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from torchair.configs._sections import rank_and_world
from torchair.configs.compiler_config import CompilerConfig, check_support
from torchair.core.utils import logger
from torchair.inference import _binding, _store
from torchair.inference._artifact import Saver, Stale, load

__all__ = ["cache_compile", "readable_cache"]


def cache_compile(
    func: Callable[..., Any],
    *,
    config: CompilerConfig | None = None,
    backend: Any = None,
    dynamic: bool = True,
    cache_dir: str | None = None,
    global_rank: int | None = None,
    tp_rank: int | None = None,
    pp_rank: int | None = None,
    ge_cache: bool = False,
    **kwargs: Any,
) -> Callable[..., Any]:
    """A function that computes `func` from a compiled graph, which a file keeps for the next process.

    Args:
        func: a method or function that dynamo traces into one graph, once. Inference only: it runs without gradients.
        config: options, by default CompilerConfig() or the backend's.
        backend: of torchair.get_npu_backend(); its options must be `config` if both are given.
        dynamic: trace with symbolic sizes.
        cache_dir: where to keep it, by default `.torchair_cache` in the current folder.
        global_rank: of this process, by default torch.distributed's.
        tp_rank: of this process in its tensor-parallel group.
        pp_rank: of this process in its pipeline.
        ge_cache: keeps its own folder (`gecache`), in mode max-autotune alone. Host code is kept either way.
        kwargs: `custom_decompositions`, as get_npu_backend takes them.
    """
    if not isinstance(func, (types.FunctionType, types.MethodType)):
        raise TypeError(f"cache_compile: func must be a method or function, received {func!r}")
    unknown = set(kwargs) - {"custom_decompositions"}
    if unknown:
        raise TypeError(
            f"cache_compile: unknown arguments {sorted(unknown)}, expected custom_decompositions"
        )
    config, decompositions = _resolve(config, backend, kwargs.get("custom_decompositions"))
    if ge_cache and config.captures:
        raise ValueError(f"cache_compile: ge_cache needs mode max-autotune, not {config.mode.raw}")
    check_support(config)
    folder = cache_dir or os.environ.get("TORCHAIR_CACHE_HOME") or ".torchair_cache"
    ranks = (global_rank, tp_rank, pp_rank)
    return _Cached(func, config, decompositions, dynamic, Path(folder), ranks, ge_cache)


def readable_cache(cache_bin: str, print_output: bool = True, file: str | None = None) -> str:
    """The content of a `compiled_module` file as text, which is also valid Python.

    Args:
        cache_bin: the file that cache_compile wrote.
        print_output: print the text.
        file: write the text there as well.
    """
    record = _store.read(Path(cache_bin))
    lines = ["=" * 100, *(f"{key}: {value}" for key, value in record["meta"].items())]
    lines += ["inputs:", *(f"  {one}" for one in record["inputs"]), "-" * 100, "caller:"]
    listing = io.StringIO()
    dis.dis(marshal.loads(record["caller"]), file=listing)
    lines += listing.getvalue().splitlines()
    text = "\n".join(f"# {line}" for line in lines) + "\n" + record["source"]
    if print_output:
        print(text)
    if file is not None:
        path = Path(file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o600)
    return text


def _resolve(
    config: CompilerConfig | None, backend: Any, decompositions: Any
) -> tuple[CompilerConfig, dict[Any, Any]]:
    keywords = getattr(backend, "keywords", None) if backend is not None else {}
    if keywords is None or (backend is not None and "compiler_config" not in keywords):
        raise TypeError(
            f"cache_compile: backend must come from torchair.get_npu_backend(), received {backend!r}"
        )
    own = keywords.get("compiler_config")
    if config is not None and own is not None and config != own:
        raise ValueError(
            f"cache_compile: config {config.changed()} and the backend's {own.changed()} differ"
        )
    return config or own or CompilerConfig(), dict(
        decompositions or keywords.get("decompositions") or {}
    )


class _Cached:
    """The function that cache_compile returns."""

    def __init__(
        self,
        func: Callable[..., Any],
        config: CompilerConfig,
        decompositions: dict[Any, Any],
        dynamic: bool,
        folder: Path,
        ranks: tuple[int | None, int | None, int | None],
        ge_cache: bool,
    ):
        self.func, self.config, self.dynamic = func, config, dynamic
        self.decompositions = decompositions
        self.folder, self.ranks, self.ge_cache = folder.absolute(), ranks, ge_cache
        self.run: Callable[..., Any] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            if self.run is None:
                self.run = self._start()
            try:
                return self.run(*args, **kwargs)
            except Stale as stale:
                warnings.warn(
                    f"cache_compile: {self.path} does not fit this call ({stale}); it is built again",
                    stacklevel=2,
                )
                self.run = self._compile(rebuild=True)
                return self.run(*args, **kwargs)

    @functools.cached_property
    def binding(self) -> dict[str, str]:
        """What the function was like when it was first called, or asked for its path."""
        return _binding.of(self.func, self.config, self.decompositions)

    @property
    def path(self) -> Path:
        """<dir>/<class>_<dynamic|static>[_aclgraphcache|_gecache]_<key>/[ranks/]<function>/compiled_module"""
        owner = getattr(self.func, "__self__", None)
        name = type(owner).__name__ if owner is not None else self.func.__name__
        parts = [name, "dynamic" if self.dynamic else "static"]
        parts += ["aclgraphcache"] if self.config.captures else ["gecache"] * self.ge_cache
        folder = self.folder / "_".join([*parts, _binding.key(self.binding)])
        global_rank, tp_rank, pp_rank = self.ranks
        rank, world = rank_and_world()
        where = []
        if world > 1:
            where.append(f"world{world}global_rank{rank if global_rank is None else global_rank}")
        where += [f"tp_rank{tp_rank}"] * (tp_rank is not None)
        where += [f"pp_rank{pp_rank}"] * (pp_rank is not None)
        return folder / "_".join(where) / self.func.__name__ / _store.FILE

    def _start(self) -> Callable[..., Any]:
        place = _store.Place(self.path)
        if place.refused is not None:
            warnings.warn(
                f"cache_compile: {self.path} is not used: {place.refused}. The function is built again in a "
                "private folder, and not kept. Choose another cache_dir, or make this one yours and closed to "
                "other writers.",
                stacklevel=3,
            )
            return self._compile()
        try:
            run = load(place, self.binding, self.func, self.config)
        except FileNotFoundError:
            return self._compile()
        except _store.BadCache as bad:
            warnings.warn(
                f"cache_compile: {self.path} is not used, and built again: {bad}", stacklevel=3
            )
            return self._compile(rebuild=True)
        owner = type(getattr(self.func, "__self__", self.func))
        logger.debug("Rebasing %s onto %s: it runs on this model's tensors", self.path, owner)
        logger.info("Cache %s loaded", self.path)
        return run

    def _compile(self, rebuild: bool = False) -> Callable[..., Any]:
        place = _store.Place(self.path)
        if rebuild:
            place.forget()
        saver = Saver(place, self.binding, self.func, self.config, self.decompositions)
        compiled = torch.compile(
            self.func, backend=saver.backend, fullgraph=True, dynamic=self.dynamic
        )

        def call(*args: Any, **kwargs: Any) -> Any:
            with saver.listening():
                return compiled(*args, **kwargs)

        return call
