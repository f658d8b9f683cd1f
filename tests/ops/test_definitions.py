"""A definition that does not fit its schema fails where it stands, at import."""

from __future__ import annotations

import pytest

from torch_npu.ops._operator import Operator

SCHEMA = "test_definition(Tensor self, float eps=1e-6, int? dim=None) -> Tensor"


def make(kernel) -> Operator:
    return Operator(SCHEMA, kernel)


def test_a_part_gets_what_it_names_in_any_order():
    operator = make(lambda dim, self: (dim, self))
    assert operator.formula("x", 0.5, 3) == (3, "x")


def test_a_name_that_the_schema_lacks():
    with pytest.raises(
        TypeError, match="kernel of test_definition: the schema has no argument epsilon"
    ):
        make(lambda self, epsilon: self)
    operator = make(lambda self, eps, dim: self)
    for part in ("check", "native", "meta", "sharding"):
        with pytest.raises(TypeError, match=f"{part} of test_definition: .* has no argument axis"):
            getattr(operator, part)(lambda axis: None)
    with pytest.raises(TypeError, match="backward of test_definition: .* received axis"):
        operator.backward(_backward_of_axis)


def _backward_of_axis(grad, *, axis):
    return {}


def test_an_argument_that_no_part_reads():
    operator = make(lambda self: self)
    with pytest.raises(TypeError, match="test_definition: no part reads eps, dim"):
        operator.validate()
    operator.check(lambda eps, dim: None)
    operator.validate()


def test_a_default_beside_the_schema():
    with pytest.raises(TypeError, match="with the defaults of the schema alone"):
        make(lambda self, eps=1e-5: self)


def test_what_a_compiled_graph_cannot_do():
    with pytest.raises(TypeError, match="compiled is one of .* not 'inline'"):
        Operator(SCHEMA, lambda self, eps, dim: self, compiled="inline")
