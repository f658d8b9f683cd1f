"""Upstream's numbers for data types: `torch_npu.int4`, `torch_npu.hifloat8`, ... are integers.

Operators take a type as an `int`: below 256 it is PyTorch's own number (what `torch.int8` becomes when passed for
an `int`), from 256 on it is 256 plus CANN's number (`torch_npu.hifloat8` is 290). `name` and `storage` read both.
"""

from __future__ import annotations

import torch

from softnpu import torch_versions

_OFFSET = 256

_CANN = {
    "float32": 0,
    "float16": 1,
    "int8": 2,
    "int32": 3,
    "uint8": 4,
    "int16": 6,
    "uint16": 7,
    "uint32": 8,
    "int64": 9,
    "uint64": 10,
    "float64": 11,
    "bool": 12,
    "string": 13,
    "complex64": 16,
    "complex128": 17,
    "bfloat16": 27,
    "int4": 29,
    "uint1": 30,
    "complex32": 33,
    "hifloat8": 34,
    "float8_e5m2": 35,
    "float8_e4m3fn": 36,
    "float8_e8m0fnu": 37,
    "float6_e3m2": 38,
    "float6_e2m3": 39,
    "float4_e2m1fn_x2": 40,
    "float4_e1m2fn_x2": 41,
}

#: what `torch_npu` exports: name -> number
CODES: dict[str, int] = {name: _OFFSET + number for name, number in _CANN.items()}

_NAMES = {number: name for name, number in CODES.items()}

#: PyTorch's own numbers (c10::ScalarType)
_TORCH: dict[int, torch.dtype] = {
    0: torch.uint8,
    1: torch.int8,
    2: torch.int16,
    3: torch.int32,
    4: torch.int64,
    5: torch.float16,
    6: torch.float32,
    7: torch.float64,
    8: torch.complex32,
    9: torch.complex64,
    10: torch.complex128,
    11: torch.bool,
    12: torch.qint8,
    13: torch.quint8,
    14: torch.qint32,
    15: torch.bfloat16,
    16: torch.quint4x2,
    23: torch.float8_e5m2,
    24: torch.float8_e4m3fn,
    27: torch.uint16,
    28: torch.uint32,
    29: torch.uint64,
    44: torch.float8_e8m0fnu,
}
#: two 4-bit floats in a byte, where this torch has them as a dtype: else empty, and uint8 carries them
FLOAT4: tuple[torch.dtype, ...] = torch_versions.float4(torch)
_TORCH |= {45 + place: dtype for place, dtype in enumerate(FLOAT4)}

#: the numbers that stand for a torch.dtype
NUMBERS = frozenset(_TORCH)

#: PyTorch's quantized types stand for the plain integers; quint4x2 is what upstream calls a signed int4
_QUANTIZED = {
    torch.qint8: "int8",
    torch.quint8: "uint8",
    torch.qint32: "int32",
    torch.quint4x2: "int4",
}

#: types that no torch dtype has, and the dtype that carries their bits
_CARRIERS = {
    "int4": torch.int32,
    "uint1": torch.uint8,
    "hifloat8": torch.uint8,
    "float6_e3m2": torch.uint8,
    "float6_e2m3": torch.uint8,
    "float4_e1m2fn_x2": torch.uint8,
}
if not FLOAT4:
    _CARRIERS["float4_e2m1fn_x2"] = torch.uint8


def name(code: int | torch.dtype) -> str | None:
    """The type's name ("int8", "int4", "hifloat8", ...), or None where the number means no type."""
    if isinstance(code, int):
        if code >= _OFFSET:
            return _NAMES.get(code)
        if code not in _TORCH:
            return None
        code = _TORCH[code]
    return _QUANTIZED.get(code) or str(code).removeprefix("torch.")


def storage(code: int | torch.dtype | str) -> torch.dtype | None:
    """The torch dtype whose tensors carry the type: itself, or uint8, or int32 for packed int4."""
    known = code if isinstance(code, str) else name(code)
    if known is None or known == "string":
        return None
    return _CARRIERS.get(known) or getattr(torch, known)


def text(code: int | torch.dtype | None) -> str:
    """How messages call the type: the name with the number that came."""
    if code is None or isinstance(code, torch.dtype):
        return str(code)
    return f"{name(code) or 'no known type'} ({code})"
