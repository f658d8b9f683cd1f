"""The library: importing it defines the operators and gives them kernels, as loading the compiled one does."""

from softnpu.contrib.sgl_kernel_npu import attention, cache, linear, lora, small, transfer, tree

__all__: list[str] = []

#: their operators are defined when they are imported
MODULES = (attention, cache, linear, lora, small, transfer, tree)
