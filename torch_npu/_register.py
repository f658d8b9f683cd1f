"""Makes the device known to PyTorch: name, allocators, kernels, module, generated methods."""

from __future__ import annotations

import os
import sys
from types import ModuleType

import torch

from softnpu import _C, chips, settings
from softnpu._version import __version__ as _own_version


def device() -> None:
    """PrivateUse1 becomes `npu`, with as many devices as the settings say (none with SOFTNPU=0)."""
    chosen = settings.current()
    memory = chosen.memory or chips.get(chosen.soc).memory
    torch.utils.rename_privateuse1_backend("npu")
    _C.configure(len(settings.visible_devices()), memory)
    _C.install()
    _C.on_start(_started)


def module(npu: ModuleType) -> None:
    """`torch.npu`, `Tensor.npu()`, `Module.npu()`, `is_npu` and their kin."""
    npu._initialized = False  # type: ignore[attr-defined]  # torch.utils.checkpoint asks, before it saves random states
    torch._register_device_module("npu", npu)
    torch.utils.generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True
    )


def version() -> str:
    """The torch_npu version that is emulated, with a local label that says by whom."""
    return f"{torch.__version__.split('+')[0]}+softnpu{_own_version}"


def _started() -> None:
    """The first use of the device in this process."""
    torch.npu._initialized = True  # type: ignore[attr-defined]
    _banner()


def _banner() -> None:
    """Says once per process (once per job under torchrun) that the device is emulated."""
    chosen = settings.current()
    if chosen.quiet or os.environ.get("LOCAL_RANK", "0") != "0" or os.environ.get("RANK", "0") != "0":
        return
    count = _C.device_count()
    memory = _C.memory_info(0)[1] / 2**30
    print(
        f"softnpu: emulating {count} x {chosen.soc} ({memory:.3g} GiB each) in host memory; results are computed on "
        "the CPU. SOFTNPU_QUIET=1 silences this line.",
        file=sys.stderr,
    )
