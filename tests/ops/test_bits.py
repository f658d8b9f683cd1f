"""Tensors with a conjugate or negative bit, and tensors without memory, among the arguments of torch_npu's operators."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses import FakeTensorMode

import torch_npu
from softnpu import settings
from tests.fuzz.writes import mapped, tensors
from tests.ops.support import make
from torch_npu.ops._registry import operators

WRITING = sorted(
    name
    for name, operator in operators.items()
    if operator.mutable and operator.samples and not operator.random and not operator.direct
)


def arguments(operator):
    args, kwargs = operator.samples[0].inputs(make)
    return dict(zip(operator.arguments, args, strict=False)) | kwargs


def called(operator, given):
    """The results and the written arguments, or what was refused."""
    try:
        results = tensors(operator.overload(**given))
    except (RuntimeError, NotImplementedError) as refusal:
        return str(refusal).partition("\n")[0]
    return [x.resolve_neg().cpu() for x in results + tensors([given[n] for n in operator.mutable])]


@pytest.mark.parametrize("name", WRITING)
def test_written_tensors_may_be_negatives(name):
    """Each written argument as the negative of its bytes: the same results, and the same values in it."""
    operator = operators[name]
    written = [n for n in operator.mutable if isinstance(arguments(operator).get(n), torch.Tensor)]
    for chosen in (*([n] for n in written), written):
        plain, lazy = arguments(operator), arguments(operator)
        for n in chosen:
            if lazy[n].dtype not in (torch.bool, torch.uint8):
                lazy[n] = torch._neg_view(lazy[n].detach().neg())
        expected, found = called(operator, plain), called(operator, lazy)
        if isinstance(expected, str) or isinstance(found, str):
            assert found == expected
            continue
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def test_a_quantized_tensor_has_no_negative_bit():
    """On the CPU device whatever is done with such a view ends the process."""
    x = torch.quantize_per_tensor(torch.ones(2, 3, device="npu"), 0.1, 0, torch.qint8)
    with pytest.raises(
        RuntimeError, match="aten::_neg_view: argument 'self' must not be quantized"
    ):
        torch._neg_view(x)


def test_the_written_tensor_itself_is_returned():
    x = torch.zeros(4, 8, device="npu")
    lazy = torch._neg_view(x)
    where = torch.zeros(1, 1, dtype=torch.int64, device="npu")
    returned = torch_npu.npu_scatter_nd_update_(lazy, where, torch.ones(1, 8, device="npu"))
    assert returned is lazy and lazy.is_neg()
    assert lazy[0].eq(1).all() and x[0].eq(-1).all() and x[1:].eq(0).all()


def test_conjugates_are_refused_by_name():
    x = make(4, 8).to(torch.complex64).conj()
    with pytest.raises((RuntimeError, TypeError), match="npu_rms_norm: argument"):
        torch_npu.npu_rms_norm(x, make(8))


def grouped(bias):
    half = torch.float16
    x, weights = (
        [make(3, 8, dtype=half), make(2, 8, dtype=half)],
        [make(8, 4, dtype=half), make(8, 5, dtype=half)],
    )
    return torch.ops.npu.npu_grouped_matmul.List(x, weights, bias=bias)


def test_tensors_without_memory_in_lists_that_may_be_none():
    """PyTorch does not look into such lists when it chooses a kernel."""
    jagged = torch.nested.nested_tensor([make(2, 4), make(3, 4)], layout=torch.jagged)
    for odd in (jagged, FakeTensorMode().from_tensor(make(4))):
        with settings.override(strict=False), pytest.raises(RuntimeError, match="has no memory"):
            grouped([odd, make(5, dtype=torch.float16)])


def test_negatives_in_lists_that_may_be_none():
    bias = [make(4, dtype=torch.float16), make(5, dtype=torch.float16)]
    expected = grouped(bias)
    found = grouped(mapped(bias, lambda x: torch._neg_view(x.neg())))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
