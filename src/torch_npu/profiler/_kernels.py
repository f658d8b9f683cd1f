"""Names that tools expect of device kernels: kernel, data types and formats.

There are no kernels here, so their names derive from their type: one of type Add is `aclnnAdd_AddAiCore_Add`.
"""

from __future__ import annotations

from typing import Any

#: the unit that copies between host and device
COPY_CORE = "SDMA_SQE"

DTYPES = {
    "float32": "FLOAT", "float16": "FLOAT16", "bfloat16": "DT_BF16", "float64": "DOUBLE", "int64": "INT64",
    "int32": "INT32", "int16": "INT16", "int8": "INT8", "uint8": "UINT8", "bool": "BOOL", "uint16": "UINT16",
    "uint32": "UINT32", "uint64": "UINT64", "complex64": "COMPLEX64", "complex128": "COMPLEX128",
}  # fmt: skip
FORMATS = {
    0: "NCHW", 1: "NHWC", 2: "ND", 3: "NC1HWC0", 4: "FRACTAL_Z", 12: "NC1HWC0_C04", 16: "HWCN", 27: "NDHWC",
    29: "FRACTAL_NZ", 30: "NCDHW", 32: "NDC1HWC0", 33: "FRACTAL_Z_3D",
}  # fmt: skip
_AI_CPU_DTYPES = {"float64", "complex64", "complex128"}


def plain(name: str) -> str:
    """The operator's name without namespace and overload."""
    return name.rsplit("::", 1)[-1].split(".", 1)[0]


def kernel_name(kind: str) -> str:
    return f"aclnn{kind}_{kind}AiCore_{kind}"


def on_ai_cpu(inputs: list[Any]) -> bool:
    """Whether a task works on what AI cores cannot hold, so that the AI CPU runs it."""
    return any(value[1].removeprefix("torch.") in _AI_CPU_DTYPES for value in inputs)


def dtype_name(dtype: str) -> str:
    short = dtype.removeprefix("torch.")
    return DTYPES.get(short, short.upper())


def format_name(number: int) -> str:
    return FORMATS.get(number, "ND" if number < 0 else str(number))
