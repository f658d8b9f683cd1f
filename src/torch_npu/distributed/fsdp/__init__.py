"""torch_npu.distributed.fsdp: `fully_shard` on npu. torch's own needs no help here."""

from __future__ import annotations

from typing import Any

__all__ = ["fully_shard"]


def fully_shard(*args: Any, **kwargs: Any) -> Any:
    """torch.distributed.fsdp.fully_shard."""
    from torch.distributed.fsdp import fully_shard as of_torch

    return of_torch(*args, **kwargs)
