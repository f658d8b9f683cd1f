"""What an operator's kernel is on the card: its type and the unit that runs it, read from the operator's facts.

They are written with the tasks, since a profile is analyzed without PyTorch.
"""

from __future__ import annotations

import functools

from softnpu import _C, chips
from torch_npu.ops import _registry
from torch_npu.ops._signatures import camel_case


@functools.cache
def _traits() -> dict[str, dict[str, object]]:
    return _C.operator_traits()


def kernel(name: str) -> tuple[str, str]:
    """Type and core of the kernel that an operator (`npu::npu_rms_norm`, `aten::add.Tensor`) runs."""
    space, _, local = name.rpartition("::")
    operator = _registry.operators.get(name.removeprefix("npu::"))
    if operator is not None:
        return operator.ge, operator.core or (CUBE if operator.product else _vector())
    base = local.split(".", 1)[0]
    traits = _traits().get(f"{space}::{base}", {})
    inplace = "Inplace" if base.endswith("_") else ""
    core = traits.get("core") or (CUBE if traits.get("product") else _vector())
    return str(traits.get("type") or inplace + camel_case(base) or base), str(core)


CUBE = "AI_CORE"


def _vector() -> str:
    """Chips whose cores are not split run everything on the same kind of core."""
    return CUBE if chips.current().family in ("310P", "910A") else "AI_VECTOR_CORE"
