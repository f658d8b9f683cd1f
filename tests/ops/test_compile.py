"""Every operator under torch.compile: one graph, static and dynamic shapes, the results of eager.

The inputs are the operators' own samples; the backend is AOTAutograd's, which traces through FakeTensor and
functionalization and then runs the operators on the device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._functorch import config as functorch_config
from torch.utils._pytree import tree_flatten

from tests.ops.support import make
from torch_npu.ops._operator import Sample
from torch_npu.ops._registry import operators


def samples(name: str) -> list[Sample]:
    return getattr(operators[name].definition, "samples", [])


_TENSORS = (torch._C.TensorType, torch._C.ListType)

#: gradients and out forms: opcheck traces them, with every sample, in test_all_operators
_FORMS = ("_backward", "_grad", ".out", "_infer_output")


def traceable(name: str) -> bool:
    """A public operator that a graph can hold: Dynamo refuses those that return nothing but numbers."""
    returns = operators[name].schema.returns
    holds = not returns or any(isinstance(r.type, _TENSORS) for r in returns)
    return holds and operators[name].exported and not name.endswith(_FORMS)


NAMES = [name for name in sorted(operators) if samples(name) and traceable(name)]


def outcome(function: Callable[..., Any], name: str) -> list[Any]:
    """Everything a call of the first sample yields: its results, and its arguments as it leaves them."""
    args, kwargs = samples(name)[0].inputs(make)
    torch.manual_seed(3)
    result = function(*args, **kwargs)
    flat = tree_flatten((result, args, kwargs))[0]
    return [v.detach().cpu() if isinstance(v, torch.Tensor) else v for v in flat]


#: Some operators return the caches that they write, and upstream's schemas do not say so. PyTorch's debugging
#: backends warn of it, and raise where CI is set.
@functorch_config.patch(error_on_custom_op_aliasing=False)
@pytest.mark.filterwarnings("ignore:.*may not alias any inputs")
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", NAMES)
def test_compiled_equals_eager(name, dynamic):
    call = operators[name].overload
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda *a, **k: call(*a, **k), backend="aot_eager", fullgraph=True, dynamic=dynamic
    )
    for got, expected in zip(outcome(compiled, name), outcome(call, name), strict=True):
        if isinstance(expected, torch.Tensor):
            torch.testing.assert_close(got, expected, equal_nan=True)
        else:
            assert got == expected


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["npu_linear", "npu_rms_norm", "npu_swiglu", "npu_fast_gelu"])
def test_autocast_leaves_named_operators_as_they_are(name, dtype):
    """Upstream's autocast lists hold PyTorch's operators alone; those that npu adds compute as called."""
    call = operators[name].overload
    with torch.autocast("npu", dtype=dtype):
        inside = outcome(call, name)
        cast = torch.mm(make(2, 3), make(3, 2))
    assert cast.dtype == dtype, "a listed operator does cast"
    for got, expected in zip(inside, outcome(call, name), strict=True):
        if isinstance(expected, torch.Tensor):
            assert got.dtype == expected.dtype and torch.equal(got, expected)
