"""DataType and Format, and what they are in torch and in the file; mirrors the classes of upstream's torchair.ge."""

from __future__ import annotations

import enum

import torch

from torchair.ge.ir import PROTO_DTYPES


class DataType:
    """Numbers of the graph engine's data types."""

    DT_FLOAT = 0
    DT_FLOAT16 = 1
    DT_INT8 = 2
    DT_INT32 = 3
    DT_UINT8 = 4
    DT_INT16 = 6
    DT_UINT16 = 7
    DT_UINT32 = 8
    DT_INT64 = 9
    DT_UINT64 = 10
    DT_DOUBLE = 11
    DT_BOOL = 12
    DT_STRING = 13
    DT_DUAL_SUB_INT8 = 14
    DT_DUAL_SUB_UINT8 = 15
    DT_COMPLEX64 = 16
    DT_COMPLEX128 = 17
    DT_QINT8 = 18
    DT_QINT16 = 19
    DT_QINT32 = 20
    DT_QUINT8 = 21
    DT_QUINT16 = 22
    DT_RESOURCE = 23
    DT_STRING_REF = 24
    DT_DUAL = 25
    DT_VARIANT = 26
    DT_BF16 = 27
    DT_UNDEFINED = 28
    DT_INT4 = 29
    DT_UINT1 = 30
    DT_INT2 = 31
    DT_UINT2 = 32
    DT_COMPLEX32 = 33
    DT_HIFLOAT8 = 34
    DT_FLOAT8_E5M2 = 35
    DT_FLOAT8_E4M3FN = 36
    DT_FLOAT8_E8M0 = 37
    DT_FLOAT6_E3M2 = 38
    DT_FLOAT6_E2M3 = 39
    DT_FLOAT4_E2M1 = 40
    DT_FLOAT4_E1M2 = 41
    DT_MAX = 42


DataType.__module__ = "torchair.ge"


class Format(enum.Enum):
    """Numbers of the data formats."""

    FORMAT_UNDEFINED = -1
    FORMAT_NCHW = 0
    FORMAT_NHWC = 1
    FORMAT_ND = 2
    FORMAT_NC1HWC0 = 3
    FORMAT_FRACTAL_Z = 4
    FORMAT_NC1HWC0_C04 = 12
    FORMAT_HWCN = 16
    FORMAT_NDHWC = 27
    FORMAT_FRACTAL_NZ = 29
    FORMAT_NCDHW = 30
    FORMAT_NDC1HWC0 = 32
    FORMAT_FRACTAL_Z_3D = 33
    FORMAT_NC = 35
    FORMAT_NCL = 47
    FORMAT_FRACTAL_NZ_C0_16 = 50
    FORMAT_FRACTAL_NZ_C0_2 = 52
    FORMAT_FRACTAL_NZ_C0_4 = 53
    FORMAT_FRACTAL_NZ_C0_8 = 54


Format.__module__ = "torchair.ge"

_TORCH: dict[str, torch.dtype] = {
    "DT_FLOAT": torch.float32,
    "DT_FLOAT16": torch.float16,
    "DT_BF16": torch.bfloat16,
    "DT_DOUBLE": torch.float64,
    "DT_INT8": torch.int8,
    "DT_UINT8": torch.uint8,
    "DT_INT16": torch.int16,
    "DT_UINT16": torch.uint16,
    "DT_INT32": torch.int32,
    "DT_UINT32": torch.uint32,
    "DT_INT64": torch.int64,
    "DT_UINT64": torch.uint64,
    "DT_BOOL": torch.bool,
    "DT_COMPLEX32": torch.complex32,
    "DT_COMPLEX64": torch.complex64,
    "DT_COMPLEX128": torch.complex128,
    "DT_QINT8": torch.qint8,
    "DT_QUINT8": torch.quint8,
    "DT_QINT32": torch.qint32,
    "DT_INT4": torch.quint4x2,
    "DT_FLOAT8_E5M2": torch.float8_e5m2,
    "DT_FLOAT8_E4M3FN": torch.float8_e4m3fn,
    "DT_FLOAT8_E8M0": torch.float8_e8m0fnu,
}
_NAMES = {torch_type: name for name, torch_type in _TORCH.items()}
_GE_NAMES = {number: name for name, number in vars(DataType).items() if name.startswith("DT_")}
_PROTO_NAMES = {number: name for name, number in PROTO_DTYPES.items()}


def ge_type(dtype: torch.dtype) -> int:
    """The number in DataType of a torch type."""
    if dtype not in _NAMES:
        raise RuntimeError(f"torch type {dtype} has no data type of the graph engine")
    return getattr(DataType, _NAMES[dtype])


def torch_type(number: int) -> torch.dtype:
    """The torch type of a number in DataType."""
    name = _GE_NAMES.get(number, str(number))
    if name not in _TORCH:
        raise RuntimeError(f"data type {name} of the graph engine has no torch type")
    return _TORCH[name]


def proto_type(number: int) -> int:
    """The number in the file of a number in DataType."""
    name = _GE_NAMES.get(number, str(number))
    if name not in PROTO_DTYPES:
        raise ValueError(f"{name} is no data type of a tensor in a graph")
    return PROTO_DTYPES[name]


def from_proto(number: int) -> int:
    """The number in DataType of a number in the file."""
    return getattr(DataType, _PROTO_NAMES[number])
