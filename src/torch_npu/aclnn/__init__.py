"""aclnn functions whose arguments are not those of the operator of the same name.

C++ extensions call aclnn functions, by libopapi.so or by EXEC_NPU_CMD. Most have the arguments of an operator of
torch_npu or ATen, in its order, and are found by name (torch_npu/csrc/framework/OperatorCall.h). The others are here:
`aclnn::<name>` takes the arguments in the order of CANN's function and returns what its outputs receive. The module is
imported when the first aclnn function is called. See docs/cpp_extensions.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_library = torch.library.Library("aclnn", "FRAGMENT")


def aclnn(schema: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a function the kernel of `aclnn::<name>`, unless the program has registered one of its own."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        name = schema.partition("(")[0]
        if not _defined(name):
            _library.define(schema)
            _library.impl(name, function, "PrivateUse1")
        return function

    return register


def _defined(name: str) -> bool:
    try:
        torch._C._get_schema(f"aclnn::{name}", "")
    except RuntimeError:  # there is none of this name
        return False
    return True


from torch_npu.aclnn import _attention, _comm, _math, _matmul, _moe, _norm, _optim, _rope  # noqa: E402, F401
