"""torch.npu.npugraph_ex.inference: caches of captured functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchair.inference import cache_compile as _cache_compile
from torchair.inference import readable_cache

__all__ = ["cache_compile", "readable_cache"]


def cache_compile(
    func: Callable[..., Any],
    *,
    dynamic: bool = True,
    cache_dir: str | None = None,
    global_rank: int | None = None,
    tp_rank: int | None = None,
    pp_rank: int | None = None,
    options: dict[str, Any] | None = None,
    **kwargs: Any,
) -> Callable[..., Any]:
    """torchair.inference.cache_compile in mode npugraph_ex.

    Args:
        func: a method or function that dynamo traces into one graph, once.
        dynamic: trace with symbolic sizes.
        cache_dir: where to keep it, by default `.torchair_cache` in the current folder.
        global_rank: of this process, by default torch.distributed's.
        tp_rank: of this process in its tensor-parallel group.
        pp_rank: of this process in its pipeline.
        options: as in torch.compile(backend="npugraph_ex", options=...).
        kwargs: `custom_decompositions`, as torchair.get_npu_backend takes them.
    """
    from torchair.npugraph_ex import config_of

    return _cache_compile(
        func,
        config=config_of(options),
        dynamic=dynamic,
        cache_dir=cache_dir,
        global_rank=global_rank,
        tp_rank=tp_rank,
        pp_rank=pp_rank,
        **kwargs,
    )
