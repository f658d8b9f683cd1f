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
    """torch.distributed.pipelining.pipeline: traces by export (`mode` None or "export").

    Differs from upstream: the tracer of `mode="fx"`, with its `atomic_units`, is not there and raises.
    """
    if mode not in (None, "export", "fx"):
        raise ValueError(
            f"pipeline: the parameter 'mode' must be None, 'export' or 'fx', but received {mode!r}."
            + dist_error(ErrCode.VALUE)
        )
    if mode == "fx":
        raise NotImplementedError(
            "pipeline: the parameter 'mode' is not supported as 'fx'; use None or 'export'."
            + dist_error(ErrCode.NOT_SUPPORT)
        )
    if atomic_units is not None:
        raise ValueError(
            "pipeline: the parameter 'atomic_units' goes with mode='fx' only."
            + dist_error(ErrCode.VALUE)
        )
    from torch.distributed.pipelining import pipeline as of_torch

    return of_torch(module, mb_args, mb_kwargs, split_spec, split_policy)
