"""Numbers in the place of torch.dtype and torch.layout: those that mean nothing are refused by name, before PyTorch's table."""

from __future__ import annotations

import numpy
import pytest
import torch
from torch._subclasses import FakeTensorMode

import torch_npu
from softnpu import settings
from torch_npu.ops._enumerations import _CheckedFunction, protect
from torch_npu.ops._registry import operators

#: far from the table, beside it, and in its gaps; modulo 256 some of them are dtypes
NO_DTYPES = (-1, -128, 22, 77, 127, 128, 256 + 6, 999, 2**31, 2**62)


def bits():
    return torch.zeros(8, dtype=torch.uint8, device="npu")


CALLS = {
    "torch_npu": lambda n: torch_npu.npu_sign_bits_unpack(bits(), 1, n),
    "by name": lambda n: torch_npu.npu_sign_bits_unpack(bits(), size=1, dtype=n),
    "packet": lambda n: torch.ops.npu.npu_sign_bits_unpack(bits(), 1, n),
    "overload": lambda n: torch.ops.npu.npu_sign_bits_unpack.default(bits(), 1, n),
}


@pytest.mark.parametrize("way", CALLS)
@pytest.mark.parametrize("number", NO_DTYPES)
@pytest.mark.parametrize("strict", [False, True])
def test_a_number_that_is_no_dtype(way, number, strict):
    message = rf"npu_sign_bits_unpack: argument 'dtype' must be a torch.dtype.*\({number}\)"
    with settings.override(strict=strict), pytest.raises(RuntimeError, match=message):
        CALLS[way](number)


@pytest.mark.parametrize("number", [numpy.int64(77), numpy.int8(-5), torch.tensor(77)])
def test_what_pytorch_takes_for_a_number(number):
    with pytest.raises(RuntimeError, match=rf"argument 'dtype'.*\({int(number)}\)"):
        CALLS["packet"](number)


def test_with_fake_tensors_and_without_a_tensor():
    with FakeTensorMode(), pytest.raises(RuntimeError, match="argument 'dtype'"):
        CALLS["overload"](77)
    with pytest.raises(RuntimeError, match="empty_with_format: argument 'dtype'"):
        torch_npu.empty_with_format([2, 3], dtype=99, device="npu")


@pytest.mark.parametrize("number", [-3, 8, 77, 300])
def test_a_number_that_is_no_layout(number):
    message = rf"empty_with_format: argument 'layout' must be a torch.layout.*\({number}\)"
    with pytest.raises(RuntimeError, match=message):
        torch.ops.npu.empty_with_format([2, 3], layout=number)


@pytest.mark.parametrize("number", [-7, 5, 99, 2**31])
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    "cast",
    [
        torch.ops.npu.npu_format_cast.default,
        lambda x, n: torch.ops.npu._npu_format_cast.aclnn(x, n, 1),
        lambda x, n: torch.ops.npu._npu_format_cast.input_dtype(x, n, 1, 1),
    ],
)
def test_a_number_that_is_no_format(number, strict, cast):
    x = torch.ones(16, 16, device="npu", dtype=torch.float16)
    with (
        settings.override(strict=strict),
        pytest.raises(RuntimeError, match="'acl_format' must be one of"),
    ):
        cast(x, number)


def test_an_object_of_another_enumeration():
    with pytest.raises(RuntimeError, match="argument 'layout' must be a torch.layout.*torch.int8"):
        torch.ops.npu.empty_with_format([2, 3], layout=torch.int8)
    with pytest.raises(RuntimeError, match="argument 'dtype' must be a torch.dtype.*strided"):
        CALLS["packet"](torch.strided)


def test_numbers_of_dtypes_and_dtypes_pass():
    assert torch_npu.npu_sign_bits_unpack(bits(), 1, 6).dtype == torch.float32
    assert torch_npu.npu_sign_bits_unpack(bits(), 1, torch.float16).dtype == torch.float16
    made = torch.ops.npu.empty_with_format([2, 3], dtype=5, layout=0, device="npu")
    assert made.dtype == torch.float16 and made.layout == torch.strided


def test_every_operator_with_such_an_argument_looks_first():
    enumerated = {
        operator.base: operator
        for operator in operators.values()
        for argument in operator.schema.arguments
        if any(kind in str(argument.real_type) for kind in ("ScalarType", "Layout", "MemoryFormat"))
    }
    assert {"npu_sign_bits_unpack", "npu_grouped_matmul", "empty_with_format"} <= set(enumerated)
    for operator in enumerated.values():
        assert isinstance(operator.overload.op, _CheckedFunction)
        assert isinstance(operator.overload.overloadpacket.op, _CheckedFunction)
    assert not isinstance(torch.ops.npu.npu_rms_norm.default.op, _CheckedFunction)


def test_tables_keep_the_operator():
    """Its hash is the one from before: PyTorch has tables with operators as keys."""
    library = torch.library.Library("softnpu_test_enumerations", "DEF")  # noqa: TOR901
    library.define("cast(Tensor x, ScalarType dtype) -> Tensor")
    packet = torch.ops.softnpu_test_enumerations.cast
    table = {packet.default: 1, packet: 2}
    protect(packet)
    assert (
        isinstance(packet.op, _CheckedFunction)
        and table[packet.default] == 1
        and table[packet] == 2
    )
    protect(packet)
    assert not isinstance(packet.op.function, _CheckedFunction)


def test_scripts_call_the_operator():
    def program(x):
        return torch.ops.npu.npu_sign_bits_unpack(x, 1, torch.float32)

    assert torch.equal(torch.jit.script(program)(bits()), program(bits()))


# --- PyTorch's own operators -----------------------------------------------------------------------------------------

ATEN = {
    "empty": lambda n: torch.ops.aten.empty([3], dtype=n, device="npu"),
    "empty_strided": lambda n: torch.ops.aten.empty_strided([3], [1], dtype=n, device="npu"),
    "_efficientzerotensor": lambda n: torch.ops.aten._efficientzerotensor([3], dtype=n, device="npu"),
    "_to_copy": lambda n: torch.ops.aten._to_copy(bits(), dtype=n),
    "sum": lambda n: torch.ops.aten.sum(bits(), dtype=n),
    "sum.dim_IntList": lambda n: torch.ops.aten.sum.dim_IntList(bits(), [0], dtype=n),
    "mean.dim": lambda n: torch.ops.aten.mean.dim(bits(), [0], dtype=n),
    "cumsum": lambda n: torch.ops.aten.cumsum(bits(), 0, dtype=n),
    "prod": lambda n: torch.ops.aten.prod(bits(), dtype=n),
    "nansum": lambda n: torch.ops.aten.nansum(bits(), dtype=n),
}  # fmt: skip


@pytest.mark.parametrize("name", ATEN)
@pytest.mark.parametrize("number", [-1, 77, 127, 200])
def test_a_number_that_is_no_dtype_in_pytorchs_own(name, number):
    """Those that PyTorch hands to a kernel of the device; its factories read the table before (docs/reliability.md)."""
    with pytest.raises(
        RuntimeError, match=rf"{name.partition('.')[0]}.*argument 'dtype'.*\(-?\d+\)"
    ):
        ATEN[name](number)
    assert ATEN[name](6).dtype == torch.float32


@pytest.mark.parametrize("number", [-1, 77])
def test_a_number_that_is_no_layout_or_memory_format_in_pytorchs_own(number):
    x = torch.ones(2, 2, device="npu")
    with pytest.raises(RuntimeError, match="full_like: argument 'memory_format' received a number"):
        torch.ops.aten.full_like(x, 1, memory_format=number)
    with pytest.raises(RuntimeError, match="_to_sparse: argument 'layout' received a number"):
        torch.ops.aten.to_sparse(x, layout=number)


@pytest.mark.parametrize("number", [-2, 3])
def test_a_number_that_is_no_reduction(number):
    x = torch.zeros(5, device="npu")
    with pytest.raises(
        RuntimeError, match="smooth_l1_loss: argument 'reduction' received a number"
    ):
        torch.ops.aten.smooth_l1_loss.out(x, x, number, out=torch.zeros(5, device="npu"))
    with pytest.raises(RuntimeError, match="mse_loss: argument 'reduction' received a number"):
        torch.ops.aten.mse_loss(x, x, number)


def test_a_number_that_is_no_dtype_of_points():
    x = torch.zeros((), device="npu")
    with pytest.raises(RuntimeError, match="linspace: argument 'dtype' received a number"):
        torch.ops.aten.linspace(x, 5.0, 3, dtype=-1, device="npu")
