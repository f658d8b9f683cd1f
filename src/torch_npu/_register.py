"""Makes the device known to PyTorch: name, allocators, kernels, module, generated methods."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from types import ModuleType

import torch

from softnpu import torch_versions

torch_versions.check(torch)  # before the extension: it may not load with another torch

from softnpu import _C, cann, chips, host, settings  # noqa: E402

#: types that Tensor.npu() and Storage.npu() leave out; torch_npu.unsupported_dtype
UNSUPPORTED_DTYPES = [torch.quint8, torch.quint4x2, torch.quint2x4, torch.qint32, torch.qint8]


def device() -> None:
    """PrivateUse1 becomes `npu`, with as many devices as the settings say (none with SOFTNPU=0)."""
    chosen = settings.current()
    memory = chosen.memory or chips.get(chosen.soc).memory
    torch.utils.rename_privateuse1_backend("npu")
    _C.configure(len(settings.visible_devices()), memory)
    _C.install()
    cann.export()
    if chosen.enabled:
        # C++ extensions look for CANN's library of operators by its name alone.
        ctypes.CDLL(str(Path(__file__).parent / "lib" / "libopapi.so"))


def see_devices() -> None:
    """Until the device starts, as many devices as ASCEND_RT_VISIBLE_DEVICES says now."""
    if _C.started():
        return
    count = len(settings.visible_devices())
    if count != _C.device_count():
        chosen = settings.current()
        _C.configure(count, chosen.memory or chips.get(chosen.soc).memory)


class _NpuModule(ModuleType):
    """torch.npu with torch.cuda's `_initialized`: torch.utils.checkpoint asks it before it saves random states."""

    @property
    def _initialized(self) -> bool:
        return _C.started()


def module(npu: ModuleType) -> None:
    """`torch.npu`, `Tensor.npu()`, `Module.npu()`, `is_npu` and their kin."""
    npu.__class__ = _NpuModule
    torch._register_device_module("npu", npu)
    torch.utils.generate_methods_for_privateuse1_backend(
        for_tensor=True,
        for_module=True,
        for_packed_sequence=True,
        for_storage=True,
        unsupported_dtype=UNSUPPORTED_DTYPES,
    )


def version() -> str:
    """The torch_npu version that is emulated, with a local label that says by whom."""
    return torch_versions.full(torch_versions.release(torch.__version__))


def started() -> None:
    """The first use of the device: tell the person, and let `softnpu info` find the process."""
    _banner()
    host.announce(_held)


def _held() -> dict[int, int]:
    """Bytes that this process holds of each device, by the device's number on the machine."""
    machine = settings.visible_devices()
    held = {
        machine[index]: _C.memory_stats(index)["reserved_bytes"]["all"]["current"]
        for index in range(_C.device_count())
    }
    return {device: size for device, size in held.items() if size}


def _banner() -> None:
    """Says once per process (once per job under torchrun) that the device is emulated."""
    chosen = settings.current()
    if (
        chosen.quiet
        or os.environ.get("LOCAL_RANK", "0") != "0"
        or os.environ.get("RANK", "0") != "0"
    ):
        return
    count = _C.device_count()
    memory = _C.memory_info(0)[1] / 2**30
    print(
        f"softnpu: emulating {count} x {chosen.soc} ({memory:.3g} GiB each) in host memory; results are computed on "
        "the CPU. SOFTNPU_QUIET=1 silences this line.",
        file=sys.stderr,
    )
