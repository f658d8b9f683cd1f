"""The numbers of data types, and what they stand for."""

import pytest
import torch

import torch_npu
from torch_npu import _dtypes

#: CANN's numbers as its public header has them
CANN = {
    "float32": 0, "float16": 1, "int8": 2, "int32": 3, "uint8": 4, "int16": 6, "uint16": 7, "uint32": 8,
    "int64": 9, "uint64": 10, "float64": 11, "bool": 12, "string": 13, "complex64": 16, "complex128": 17,
    "bfloat16": 27, "int4": 29, "uint1": 30, "complex32": 33, "hifloat8": 34, "float8_e5m2": 35,
    "float8_e4m3fn": 36, "float8_e8m0fnu": 37, "float6_e3m2": 38, "float6_e2m3": 39,
    "float4_e2m1fn_x2": 40, "float4_e1m2fn_x2": 41,
}  # fmt: skip


def test_exported_numbers():
    assert set(_dtypes.CODES) == set(CANN)
    for name, number in CANN.items():
        assert getattr(torch_npu, name) == 256 + number


@pytest.mark.parametrize("name", sorted(CANN))
def test_name_of_exported_number(name):
    assert _dtypes.name(_dtypes.CODES[name]) == name


@pytest.mark.parametrize(
    "dtype,name",
    [
        (torch.int8, "int8"),
        (torch.qint8, "int8"),
        (torch.quint8, "uint8"),
        (torch.qint32, "int32"),
        (torch.quint4x2, "int4"),
        (torch.float16, "float16"),
        (torch.bfloat16, "bfloat16"),
        (torch.float8_e4m3fn, "float8_e4m3fn"),
        (torch.float8_e5m2, "float8_e5m2"),
        (torch.float8_e8m0fnu, "float8_e8m0fnu"),
        *((dtype, "float4_e2m1fn_x2") for dtype in _dtypes.FLOAT4),
    ],
)
def test_torch_dtypes(dtype, name):
    assert _dtypes.name(dtype) == name
    assert _dtypes.name(number_of(dtype)) == name


def number_of(dtype):
    """The number that PyTorch itself passes where a schema says `int`."""
    library = torch.library.Library("softnpu_test_dtypes", "FRAGMENT")
    library.define("number(int code) -> int")
    library.impl("number", lambda code: code, "CompositeExplicitAutograd")
    found = torch.ops.softnpu_test_dtypes.number(dtype)
    library._destroy()
    return found


@pytest.mark.parametrize(
    "code,dtype",
    [
        (285, torch.int32),
        (290, torch.uint8),
        (291, torch.float8_e5m2),
        (292, torch.float8_e4m3fn),
        (293, torch.float8_e8m0fnu),
        (296, (*_dtypes.FLOAT4, torch.uint8)[0]),
        (297, torch.uint8),
        (258, torch.int8),
        (283, torch.bfloat16),
        (1, torch.int8),
        ("hifloat8", torch.uint8),
        (torch.qint8, torch.int8),
    ],
)
def test_storage(code, dtype):
    assert _dtypes.storage(code) is dtype


def test_numbers_that_mean_nothing():
    for code in (-10, 22, 99, 255, 261, 298, 10**6):
        assert _dtypes.name(code) is None and _dtypes.storage(code) is None
    assert _dtypes.storage(_dtypes.CODES["string"]) is None


def test_text():
    assert _dtypes.text(290) == "hifloat8 (290)"
    assert _dtypes.text(-10) == "no known type (-10)"
    assert _dtypes.text(torch.int8) == "torch.int8"
    assert _dtypes.text(None) == "None"
