"""triton.runtime.driver.active for npu: device, stream, target and the chip's cores."""

from __future__ import annotations

from typing import Any

from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase

__all__ = ["NPUDriver"]

_BUFFER = 192 * 1024  # bytes of a vector core's unified buffer (Atlas A2)


class _Utils:
    """What kernels ask of the device."""

    def get_device_properties(self, device: int) -> dict[str, int]:
        import torch

        found = torch.npu.get_device_properties(device)
        return {
            "num_aicore": found.cube_core_num,
            "num_vectorcore": found.vector_core_num,
            "multiprocessor_count": found.cube_core_num,
            "max_shared_mem": _BUFFER,
            "warpSize": 1,
        }

    def load_binary(self, *args: Any) -> Any:
        raise NotImplementedError("a compiled Triton kernel is machine code of the card")


class NPUDriver(DriverBase):
    """The driver while an npu device is there and no CUDA one."""

    def __init__(self) -> None:
        super().__init__()
        self.utils = _Utils()

    @classmethod
    def is_active(cls) -> bool:
        import torch

        npu = getattr(torch, "npu", None)
        return npu is not None and npu.is_available() and not torch.cuda.is_available()

    def map_python_to_cpp_type(self, ty: str) -> str:
        if ty.startswith("*"):
            return "void*"
        names = {
            "i1": "int8_t",
            "fp16": "float",
            "bf16": "float",
            "fp32": "float",
            "fp64": "double",
        }
        if ty in names:
            return names[ty]
        if ty[:1] in ("i", "u") and ty[1:] in ("8", "16", "32", "64"):
            return f"{'u' if ty[0] == 'u' else ''}int{ty[1:]}_t"
        raise ValueError(
            f"map_python_to_cpp_type: expected a type such as i32 or *fp16, received {ty!r}"
        )

    def get_current_target(self) -> GPUTarget:
        from softnpu import chips

        return GPUTarget("npu", chips.current().name, 0)

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("npu", self.get_current_device())

    def get_device_interface(self) -> Any:
        import torch

        return torch.npu

    def get_current_device(self) -> int:
        return self.get_device_interface().current_device()

    def set_current_device(self, device: int) -> None:
        self.get_device_interface().set_device(device)

    def get_current_stream(self, device: int | None = None) -> int:
        return self.get_device_interface().current_stream(device).npu_stream

    def get_benchmarker(self) -> Any:
        from triton.testing import do_bench

        return do_bench

    def get_empty_cache_for_benchmark(self) -> Any:
        import torch

        return torch.empty(1 << 20, dtype=torch.int8, device="npu")

    def clear_cache(self, cache: Any) -> None:
        cache.zero_()
