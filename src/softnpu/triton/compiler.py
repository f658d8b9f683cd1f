"""The compiler that Triton asks for beside a driver: it says how a kernel runs without one."""

from __future__ import annotations

from typing import Any

from triton.backends.compiler import BaseBackend, GPUTarget

__all__ = ["NPUBackend"]

_MESSAGE = (
    "Triton kernels are not compiled for an emulated device: set TRITON_INTERPRET=1 before the kernel is defined, "
    "and Triton's interpreter runs it on npu tensors"
)


class NPUBackend(BaseBackend):
    """Takes the target `npu` and raises when something is to be compiled."""

    @staticmethod
    def supports_target(target: GPUTarget) -> bool:
        return target.backend == "npu"

    def hash(self) -> str:
        return f"softnpu-{self.target}"

    def parse_options(self, options: dict[str, Any]) -> Any:
        raise NotImplementedError(_MESSAGE)

    def add_stages(self, stages: Any, options: Any, language: Any = None) -> None:
        raise NotImplementedError(_MESSAGE)

    def load_dialects(self, context: Any) -> None:
        raise NotImplementedError(_MESSAGE)

    def get_module_map(self) -> dict[str, Any]:
        return {}

    def pack_metadata(self, metadata: Any) -> Any:
        raise NotImplementedError(_MESSAGE)

    def get_codegen_implementation(self, options: Any = None) -> dict[str, Any]:
        return {}
