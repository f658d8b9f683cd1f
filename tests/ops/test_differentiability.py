"""Which outputs carry a gradient: those of upstream's derivatives."""

from __future__ import annotations

import json

import pytest
import torch
from torch.utils._pytree import tree_flatten

from tests import ROOT
from tests.ops.support import make
from torch_npu.ops._registry import operators

UPSTREAM = json.loads((ROOT / "api" / "output_differentiability.json").read_text("utf-8"))
HERE = sorted(name for name in UPSTREAM if name in operators)


def test_upstreams_table_is_used():
    assert len(HERE) >= 17


@pytest.mark.parametrize("name", HERE)
def test_outputs_that_carry_a_gradient(name):
    operator = operators[name]

    def differentiable(*shape, dtype=torch.float32, **options):
        options.setdefault("requires_grad", dtype.is_floating_point)
        return make(*shape, dtype=dtype, **options)

    args, kwargs = operator.samples[0].inputs(differentiable)
    assert any(isinstance(a, torch.Tensor) and a.requires_grad for a in tree_flatten(args)[0])
    results = operator(*args, **kwargs)
    results = results if isinstance(results, (tuple, list)) else (results,)
    for expected, result in zip(UPSTREAM[name], results, strict=True):
        if isinstance(result, torch.Tensor):
            assert result.requires_grad == (expected and result.is_floating_point())
