"""torch_npu.distributed.pipelining: `pipeline` with upstream's parameters."""

from __future__ import annotations

from typing import Any

from torch_npu._errors import ErrCode, dist_error

__all__ = ["pipeline"]


def pipeline(
    module: Any,
    mb_args: tuple[Any, ...],
    mb_kwargs: dict[str, Any] | None = None,
    split_spec: Any = None,
    split_policy: Any = None,
    mode: str | None = None,
    atomic_units: list[str] | None = None,
) -> Any:
    """torch.distributed.pipelining.pipeline. The automatic split by `mode` and `atomic_units` is not there."""
    for name, value in (("mode", mode), ("atomic_units", atomic_units)):
        if value is not None:
            raise NotImplementedError(
                f"pipeline: the parameter '{name}' is not supported; use split_spec or split_policy."
                + dist_error(ErrCode.NOT_SUPPORT)
            )
    from torch.distributed.pipelining import pipeline as of_torch

    return of_torch(module, mb_args, mb_kwargs, split_spec, split_policy)
