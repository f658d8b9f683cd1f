"""torch.nn.functional.one_hot as upstream has it: int32 too, in its own dtype, and no look at the classes.

PyTorch's takes int64 alone and reads the classes to see that each is below `num_classes`; the card leaves the row of
a class outside of [0, num_classes) at zero.
"""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu._errors import BadArgument, ErrCode, operator_error
from torch_npu.ops import _check as must

_library = torch.library.Library("aten", "IMPL")  # noqa: TOR901
_AUTO = -1


def _check(self: torch.Tensor, num_classes: int) -> None:
    more = (torch.uint8,) if chips.current().family == "A5" else ()
    must.dtype("self", self, torch.int32, torch.int64, *more)
    must.hold(num_classes >= _AUTO, "num_classes", "at least -1", num_classes, ErrCode.PARAM)
    fits = self.numel() > 0 or num_classes > 0
    must.hold(fits, "num_classes", "positive for an empty tensor", num_classes, ErrCode.PARAM)


def _one_hot(self: torch.Tensor, num_classes: int = _AUTO) -> torch.Tensor:
    try:
        _check(self, num_classes)
    except BadArgument as bad:
        raise operator_error("one_hot", bad) from None
    depth = max(int(self.max()) + 1, 1) if num_classes == _AUTO else num_classes
    classes = torch.arange(depth, dtype=self.dtype, device=self.device)
    return (self.unsqueeze(-1) == classes).to(self.dtype)


for _key in ("PrivateUse1", "AutogradPrivateUse1"):
    _library.impl("one_hot", _one_hot, _key)
