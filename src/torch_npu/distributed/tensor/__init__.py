"""torch_npu.distributed.tensor: DTensor on npu is torch's own, with torch_npu's operators; `experimental` has context
parallelism.

`install` is called when a program imports torch.distributed.tensor.
"""

from __future__ import annotations

import functools
from types import ModuleType

from torch_npu._patch import Patches


def install(tensor: ModuleType, patches: Patches) -> None:
    """Tells DTensor of the operators that say how their work can be divided."""
    from torch_npu.distributed.tensor import _matmul, _operators
    from torch_npu.ops._registry import operators

    handlers = tensor.DTensor._op_dispatcher._custom_op_handlers
    for operator in operators.values():
        if "sharding" in operator.parts:
            handler = functools.partial(_operators.call, operator)
            patches.replace_entry(handlers, operator.overload, handler)
    _matmul.register(patches)
