"""In-place operators in graphs.

AOTAutograd functionalises a mutating operator by itself, unless the operator returns its target, as upstream's
schemas do; then it needs to be told: call the operator's copying twin and copy the result back.
"""

from __future__ import annotations

from typing import Any

import torch

_library = torch.library.Library("npu", "FRAGMENT")  # noqa: TOR901


def functionalise(name: str) -> None:
    """Registers the functional form of `name`, whose twin is the operator without the underscore."""

    def run(target: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        twin = getattr(torch.ops.npu, name.removesuffix("_"))
        return target.copy_(twin(target, *args, **kwargs))

    _library.impl(name, run, "Functionalize")
