"""torch_npu without an NPU: PyTorch's `npu` device, in host memory.

Importing it registers the device with PyTorch and exports every operator; no device work happens before the
first use. The order below matters: the device, then torch's own hooks, then the operators.
"""


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

from torch_npu import distributed  # noqa: E402, F401
from torch_npu.ops import _registry as _operators  # noqa: E402

_operators.discover()
globals().update(_operators.exports())

from torch_npu import _dtypes  # noqa: E402

globals().update(_dtypes.CODES)

__version__ = _register.version()

from torch_npu import profiler  # noqa: E402

profiler._NonIntrusiveProfile.init()

from torch_npu import contrib, dynamo, optim  # noqa: E402, F401
