"""What holds for every operator: opcheck, upstream's schema, the parameters, native against kernel, the device.

Nobody lists operators here: the registry knows them, and their samples are the inputs.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import json
import textwrap
from types import ModuleType
from typing import Any

import pytest
import torch
import torch._functorch.config
from torch.utils._pytree import tree_flatten, tree_map_only

import torch_npu
from softnpu import _C, chips
from tests import ROOT
from tests.ops.support import make
from tests.ops.test_compile import NAMES as COMPILED
from tools.signatures import parse
from torch_npu.ops._operator import Operator, Sample
from torch_npu.ops._registry import operators
from torch_npu.ops._signatures import parameters

SCHEMAS = json.loads((ROOT / "api" / "op_schemas.json").read_text("utf-8"))

#: (operator, opcheck utility) -> why upstream's own schema cannot pass it
EXEMPT: dict[tuple[str, str], str] = {
    (
        "npu_apply_rotary_pos_emb",
        "test_schema",
    ): "writes query and key, which upstream's schema does not declare",
    ("npu_apply_rotary_pos_emb", "test_faketensor"): "returns its inputs, undeclared",
    ("npu_kv_rmsnorm_rope_cache", "test_schema"): "writes and returns the caches, undeclared",
    ("npu_kv_rmsnorm_rope_cache", "test_faketensor"): "returns the caches, undeclared",
    ("npu_mla_prolog", "test_schema"): "writes and returns the caches, undeclared",
    ("npu_mla_prolog_v2", "test_schema"): "writes and returns the caches, undeclared",
    ("npu_apply_rotary_pos_emb", "test_aot_dispatch_dynamic"): "returns its inputs, undeclared",
    ("npu_kv_rmsnorm_rope_cache", "test_aot_dispatch_dynamic"): "returns the caches, undeclared",
    ("npu_mla_prolog", "test_aot_dispatch_dynamic"): "returns the caches, undeclared",
    ("npu_mla_prolog_v2", "test_aot_dispatch_dynamic"): "returns the caches, undeclared",
    **{
        (name, utility): "writes and returns the caches, undeclared"
        for name in ("npu_rope_quant_kvcache", "npu_dequant_rope_quant_kvcache")
        for utility in ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    },
    (
        "atb::_npu_group_topk",
        "test_schema",
    ): "writes self, which upstream's schema does not declare",
}
#: the same on products before Atlas A2 alone
EXEMPT_BEFORE_A2 = {
    (
        "npu_get_float_status",
        "test_schema",
    ): "returns self there, which upstream's schema does not declare",
}


@pytest.fixture(autouse=True)
def aliasing_is_an_error():
    """PyTorch makes it one where the variable CI is set, a warning elsewhere; here it is the same everywhere."""
    with torch._functorch.config.patch(error_on_custom_op_aliasing=True):
        yield


#: operators without samples: they are tested with the operator whose form they are
FORMS = (".out", "_get_max_workspace", "_infer_output")


def samples(operator: Operator) -> list[Sample]:
    return operator.samples


ALL = sorted(operators)
SAMPLES = [(name, index) for name in ALL for index in range(len(samples(operators[name])))]
NATIVE = [(n, i) for n, i in SAMPLES if "native" in operators[n].parts]
DIFFERENTIABLE = [(n, 0) for n, i in SAMPLES if i == 0 and "backward" in operators[n].parts]


def inputs(name: str, index: int, builder: Any = make) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return samples(operators[name])[index].inputs(builder)


def utilities(name: str, index: int) -> list[str]:
    """The opcheck utilities that apply: all but the exempt ones.

    The test of autograd registration knows no npu. AOTAutograd takes seconds: test_compile traces what torch.compile
    takes, here it is the rest's turn, but for operators whose result is declared to alias an argument, which
    functionalization refuses.
    """
    chosen = ["test_schema", "test_faketensor"]
    aliases = any(r.alias_info is not None for r in operators[name].schema.returns)
    if index == 0 and name not in COMPILED and not aliases:
        chosen.append("test_aot_dispatch_dynamic")
    before_a2 = chips.current().family in ("310P", "910A")
    exempt = EXEMPT | EXEMPT_BEFORE_A2 if before_a2 else EXEMPT
    return [u for u in chosen if (name, u) not in exempt]


@pytest.mark.parametrize("name,index", SAMPLES)
def test_opcheck(name, index):
    args, kwargs = inputs(name, index)
    torch.library.opcheck(operators[name].overload, args, kwargs, test_utils=utilities(name, index))


@pytest.mark.parametrize("name,index", DIFFERENTIABLE)
def test_opcheck_with_gradients(name, index):
    """The gradients under AOTAutograd equal those in eager (opcheck's registration test knows no npu)."""

    def differentiable(
        *shape: int, dtype: torch.dtype = torch.float32, **options: Any
    ) -> torch.Tensor:
        options.setdefault("requires_grad", dtype.is_floating_point)
        return make(*shape, dtype=dtype, **options)

    overload = operators[name].overload
    args, kwargs = inputs(name, index, differentiable)
    results = [r for r in tree_flatten(overload(*args, **kwargs))[0] if isinstance(r, torch.Tensor)]
    floating = [r for r in results if r.requires_grad]
    try:
        torch.autograd.backward(floating, [torch.ones_like(r) for r in floating])
    except NotImplementedError as error:
        assert f"derivative for 'npu::{name}' is not implemented" in str(error)
        return
    if not results[0].is_floating_point():
        return  # opcheck adds up the results in order, and cannot add a float to an integer
    args, kwargs = inputs(name, index, differentiable)
    torch.library.opcheck(overload, args, kwargs, test_utils="test_aot_dispatch_dynamic")


def test_exemptions_are_needed():
    """An exemption whose operator passes after all, or is gone, must be taken out."""
    idle = []
    for (name, utility), why in EXEMPT.items():
        assert why, f"{name}: {utility} needs a reason"
        args, kwargs = inputs(name, 0)
        result = torch.library.opcheck(
            operators[name].overload, args, kwargs, test_utils=utility, raise_exception=False
        )
        if result[utility] == "SUCCESS":
            idle.append((name, utility))
    assert not idle


@pytest.mark.parametrize("name", ALL)
def test_has_samples(name):
    assert samples(operators[name]) or any(form in name for form in FORMS)


@pytest.mark.parametrize("name", ALL)
def test_schema_is_upstreams(name):
    base = name.split(".")[0]
    assert base in SCHEMAS, f"upstream has no operator {base}"
    theirs = {str(parse(s)) for s in SCHEMAS[base]}
    assert str(operators[name].schema) in theirs


@pytest.mark.parametrize("name", ALL)
def test_documented(name):
    text = inspect.getdoc(operators[name].parts["kernel"]) or ""
    assert len(text) >= 30, "the docstring must say what the operator computes"


@pytest.mark.parametrize("name", [n for n in ALL if operators[n].form_of is None])
def test_every_parameter_is_read(name):
    """A part reads every argument that it names, and some part reads each argument of the schema; the parts of a form
    are those of the operator whose form it is."""
    operator = operators[name]
    read: set[str] = set()
    delegated = False
    for part, function in operator.parts.items():
        if part == "call":
            continue
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
        used = {
            n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
        }
        names, rest = parameters(inspect.unwrap(function))
        idle = [n for n in names if n not in used and n in operator.arguments]
        assert rest or not idle, f"{part} names {idle} and does not read it"
        read |= used
        delegated |= rest
    if delegated:
        read |= words_read(operator.__module__)
    ignored = [a for a in operator.arguments if a not in read]
    assert not ignored, f"{name} ignores {ignored}"


#: modules of the framework, which know no argument by name
_FRAMEWORK = ("ops", "_registry", "_check", "_operator", "_autograd", "_forms", "_shapes", "_chips")


@functools.cache
def words_read(module: str) -> set[str]:
    """Every name, attribute and string that a module and the operator modules it imports read."""
    tree = ast.parse(inspect.getsource(importlib.import_module(module)))
    words: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
            words.add(node.id if isinstance(node, ast.Name) else node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            words.add(node.value)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch_npu.ops"):
            for inner in _imported(node):
                words |= words_read(inner)
    return words


def _imported(node: ast.ImportFrom) -> list[str]:
    assert node.module is not None
    found = [node.module]
    for alias in node.names:
        thing = getattr(importlib.import_module(node.module), alias.name)
        if isinstance(thing, ModuleType):
            found.append(thing.__name__)
    return [m for m in found if m.rpartition(".")[2] not in _FRAMEWORK]


@pytest.mark.parametrize("name,index", NATIVE)
def test_native_equals_kernel(name, index):
    """The fast form gives what the readable one gives, in place too."""
    operator = operators[name]
    results = []
    for part in ("body", "kernel"):
        args, kwargs = inputs(name, index)
        torch.manual_seed(5)
        out = _C.run_kernel(name, operator.as_function(part), args, kwargs, operator.host_ok)
        results.append(
            [v.cpu() if isinstance(v, torch.Tensor) else v for v in tree_flatten((out, args))[0]]
        )
    for native, kernel in zip(*results, strict=True):
        if isinstance(native, torch.Tensor):
            torch.testing.assert_close(native, kernel, equal_nan=True)
        else:
            assert native == kernel


def takes_tensors(name: str) -> bool:
    return any("Tensor" in str(a.type) for a in operators[name].schema.arguments)


@pytest.mark.parametrize("name", [n for n, i in SAMPLES if i == 0 and takes_tensors(n)])
def test_host_tensors_are_refused(name):
    """With every tensor on the CPU, and with only the first one there."""
    args, kwargs = inputs(name, 0)
    flat = [v for v in tree_flatten((args, kwargs))[0] if isinstance(v, torch.Tensor)]
    assert flat
    host = tree_map_only(torch.Tensor, torch.Tensor.cpu, (args, kwargs))
    with pytest.raises((RuntimeError, NotImplementedError), match="CPU|cpu|device"):
        operators[name].overload(*host[0], **host[1])
    mixable = [v for v in flat if v.dim() > 0]
    if len(flat) < 2 or not mixable or operators[name].host_ok:
        return
    mixed = tree_map_only(torch.Tensor, lambda t: t.cpu() if t is mixable[0] else t, (args, kwargs))
    with pytest.raises(RuntimeError, match="cpu|device"):
        operators[name].overload(*mixed[0], **mixed[1])


def test_public_names():
    """Every operator is `torch_npu.<name>` with the schema's signature, unless it is kept internal."""
    for operator in operators.values():
        exported = any(o.exported for o in operators.values() if o.base == operator.base)
        assert hasattr(torch_npu, operator.base) == exported, operator
