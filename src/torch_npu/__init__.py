"""torch_npu without an NPU: PyTorch's `npu` device, in host memory.

Importing it registers the device with PyTorch and exports every operator; no device work happens before the
first use. The order below matters: the device, then torch's own hooks, then the operators.
"""

import importlib as _importlib
import os as _os
from typing import Any as _Any


def _autoload() -> None:
    """Entry point of `torch.backends`: `import torch` alone makes the device known.

    Importing this package is all there is to do. It stands first because a program may import torch_npu before
    torch: torch then asks for it while this file has only begun.
    """


from torch_npu import _register  # noqa: E402

_register.device()

from torch_npu import npu  # noqa: E402

_register.module(npu)

from torch_npu import _patch  # noqa: E402

_patch.apply()
_apply_patches = _patch._apply_patches  # sglang puts the profiler into torch by it

from torch_npu import distributed, dynamo  # noqa: E402, F401
from torch_npu.ops import _registry as _operators  # noqa: E402

_operators.discover()
globals().update(_operators.exports())

from torch_npu import _at_exit, _dtypes, _plan, atb  # noqa: E402, F401

_at_exit.register()
_plan.from_settings()

globals().update(_dtypes.CODES)
unsupported_dtype = list(_register.UNSUPPORTED_DTYPES)

from torch_npu.utils.hif8_tensor import HiFloat8Tensor  # noqa: E402

__version__ = _register.version()
__all__ = ["HiFloat8Tensor", *_operators.exports()]

#: imported when a program asks for them, or at once where the environment does
_DEFERRED = {
    "_afd": (),
    "_inductor": (),
    "aclnn": (),
    "contrib": ("TORCH_TRANSFER_TO_NPU",),
    "jit": (),
    "multiprocessing": (),
    "op_plugin": (),
    "optim": (),
    "profiler": ("PROF_CONFIG_PATH", "MSMONITOR_USE_DAEMON", "KINETO_USE_DAEMON"),
}


def __getattr__(name: str) -> _Any:
    if name in _DEFERRED:
        return _importlib.import_module(f"torch_npu.{name}")
    raise AttributeError(f"module 'torch_npu' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_DEFERRED})


from softnpu import kernels as _kernels  # noqa: E402
from softnpu import sanitizer as _sanitizer  # noqa: E402
from softnpu import triton as _triton  # noqa: E402

_triton.install()
_kernels.load()
_importlib.import_module("torch_npu.npu._sanitizer")  # a name of torch_npu.npu from the start
_sanitizer.from_settings(_os.environ.get("TORCH_NPU_SANITIZER"))

for _name, _variables in _DEFERRED.items():
    if any(_variable in _os.environ for _variable in _variables):
        __getattr__(_name)
