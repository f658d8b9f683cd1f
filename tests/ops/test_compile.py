"""Every operator under torch.compile: one graph, static and dynamic shapes, the results of eager.

The inputs are the operators' own samples. First samples are compiled: each operator with dynamic shapes, where Dynamo
traces the shape function on symbols, and all of a folder with static ones, where AOTAutograd makes them functional
besides. What other samples change is the way through the shape function, which runs here on symbols, too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._functorch import config as functorch_config
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)
from torch.utils._pytree import tree_flatten, tree_map_only

from softnpu.torch_versions import size_hint
from tests.ops.families import on
from tests.ops.support import assert_same, make
from torch_npu.ops._operator import Sample
from torch_npu.ops._registry import operators


def samples(name: str) -> list[Sample]:
    return operators[name].samples


_TENSORS = (torch._C.TensorType, torch._C.ListType)

#: gradients and out forms: opcheck traces them in test_all_operators
_FORMS = ("_backward", "_grad", ".out", "_infer_output")


def traceable(name: str) -> bool:
    """A public operator that a graph can hold: Dynamo refuses those that return nothing but numbers."""
    returns = operators[name].schema.returns
    holds = not returns or any(isinstance(r.type, _TENSORS) for r in returns)
    return holds and operators[name].exported and not name.endswith(_FORMS)


#: writes its argument, which upstream's schema does not declare: a graph drops what nobody reads
_UNDECLARED = ("atb::_npu_group_topk",)

NAMES = [
    name
    for name in sorted(operators)
    if samples(name) and traceable(name) and name not in _UNDECLARED
]


def seen(result: Any, given: Any) -> list[Any]:
    """What a call yields, on the host: its results, and its arguments as it leaves them."""
    flat = tree_flatten((result, given))[0]
    return [v.detach().cpu() if isinstance(v, torch.Tensor) else v for v in flat]


def outcome(function: Callable[..., Any], name: str) -> list[Any]:
    args, kwargs = samples(name)[0].inputs(make)
    torch.manual_seed(3)
    return seen(function(*args, **kwargs), (args, kwargs))


def compiled(function: Callable[..., Any], backend: str, dynamic: bool) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, backend=backend, fullgraph=True, dynamic=dynamic)


@pytest.fixture
def aliasing_allowed():
    """Some operators return the caches that they write, and upstream's schemas do not say so: PyTorch's debugging
    backends warn of it, and raise where CI is set."""
    with functorch_config.patch(error_on_custom_op_aliasing=False), warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*may not alias any inputs")
        yield


@pytest.mark.parametrize("name", NAMES)
def test_compiled_equals_eager(name):
    """With dynamic shapes, an operator a graph."""
    call = operators[name].overload
    function = compiled(lambda *a, **k: call(*a, **k), "eager", dynamic=True)
    assert_same(outcome(function, name), outcome(call, name))


@pytest.mark.usefixtures("aliasing_allowed")
@pytest.mark.parametrize(
    "folder,chips", sorted({(operators[n].folder, operators[n].chips or ()) for n in NAMES})
)
def test_a_folder_in_one_graph_equals_eager(folder, chips):
    """With static shapes, all operators of a folder that run on one chip, one after the other."""
    names = [n for n in NAMES if (operators[n].folder, operators[n].chips or ()) == (folder, chips)]
    with operators[names[0]].on_its_chip():
        in_one_graph(names)


def in_one_graph(names):
    calls = [operators[n].overload for n in names]

    def everything(given: list[Any]) -> list[Any]:
        return [call(*args, **kwargs) for call, (args, kwargs) in zip(calls, given, strict=True)]

    results = []
    for function in (compiled(everything, "aot_eager", dynamic=False), everything):
        given = [samples(n)[0].inputs(make) for n in names]
        torch.manual_seed(3)
        results.append(seen(function(given), given))
    assert_same(*results)


def symbolic(mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    """A fake tensor whose sizes above 1 are symbols."""
    sizes = [DimDynamic.DYNAMIC if s > 1 else DimDynamic.STATIC for s in tensor.shape]
    return mode.from_tensor(tensor, symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes))


OTHERS = [(n, i) for n in sorted(operators) for i in range(1, len(samples(n)))]


@pytest.mark.parametrize("name,index", OTHERS)
def test_shapes_of_the_other_samples_are_symbols(name, index):
    """The shape function runs on symbols, and comes to the shapes and types of the real results."""
    given = samples(name)[index].inputs(make)
    mode = FakeTensorMode(shape_env=ShapeEnv())
    args, kwargs = tree_map_only(torch.Tensor, lambda t: symbolic(mode, t), given)
    with mode, enable_python_dispatcher():
        fakes = tree_flatten(operators[name].overload(*args, **kwargs))[0]
    reals = tree_flatten(operators[name].overload(*given[0], **given[1]))[0]
    for fake, real in zip(fakes, reals, strict=True):
        if isinstance(real, torch.Tensor):
            assert fake.dtype == real.dtype and fake.device == real.device
            for size, actual in zip(fake.shape, real.shape, strict=True):
                # a size that depends on values has no hint
                assert size_hint(size) in (None, actual)


def test_a_rule_of_another_chip_takes_symbols():
    with on("310P"):
        test_shapes_of_the_other_samples_are_symbols("atb::_npu_flash_attention_v3", 0)


@pytest.mark.family("A2")
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
