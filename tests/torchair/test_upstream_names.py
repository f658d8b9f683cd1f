"""Modules of upstream's torchair that programs import: they are names of the compiler that runs."""

from __future__ import annotations

import importlib

import pytest
import torch

import torch_npu
import torchair
from torchair import npu_fx_compiler
from torchair.core._concrete_graph import ConcreteGraphBase, ValuePack, _is_symlist
from torchair.inference._cache_compiler import CompiledModel, ModelCacheSaver


def add_twice(x, y):
    return torch.relu(x + y) + y


def captured(**options):
    config = torchair.CompilerConfig()
    config.mode = "npugraph_ex"
    config.debug.run_eagerly = True
    return torchair.get_npu_backend(compiler_config=config, **options)


@pytest.mark.parametrize(
    "name",
    [
        "torchair.core._concrete_graph",
        "torchair.npu_fx_compiler",
        "torchair.fx_summary",
        "torchair._utils.graph_transform_observer",
        "torchair._acl_concrete_graph.replace_stream_event",
        "torchair._acl_concrete_graph.fx2acl_converter",
        "torchair.inference._cache_compiler",
        "torchair._ge_concrete_graph.fx2ge_converter",
        "torchair._ge_concrete_graph.supported_declaration",
        "torchair.configs.npugraphex_config",
        "torchair.ge_concrete_graph.ge_graph",
        "torchair.ge_concrete_graph.ge_apis",
        "torchair.ge_concrete_graph.fx2ge_converter",
        "torchair.ge_concrete_graph.utils",
        "torchair.ge_concrete_graph.ge_converter.experimental.patch_for_hcom_allreduce",
    ],
)
def test_modules_are_there(name):
    module = importlib.import_module(name)
    assert module.__doc__
    for public in getattr(module, "__all__", ()):
        assert hasattr(module, public)


def test_a_program_that_wraps_the_passes_sees_each_graph(monkeypatch):
    seen = []
    before = npu_fx_compiler._optimize_fx

    def wrapped(gm, config, observer):
        result = before(gm, config, observer)
        seen.append([node.target for node in gm.graph.nodes if node.op == "call_function"])
        return result

    monkeypatch.setattr(torchair.npu_fx_compiler, "_optimize_fx", wrapped)
    x, y = torch.randn(3, device="npu"), torch.randn(3, device="npu")
    result = torch.compile(add_twice, backend=torchair.get_npu_backend())(x, y)
    assert torch.equal(result, add_twice(x, y))
    assert torch.ops.aten.relu.default in seen[0] and len(seen) == 1


def test_a_graph_is_kept_as_code_and_loaded_again(monkeypatch):
    codes = []
    before = npu_fx_compiler._NpuFxCompiler._get_compiled_gm

    def keep(self, gm, example_inputs):
        compiled = before(self, gm, example_inputs)
        codes.append(compiled.get_code())
        return compiled

    monkeypatch.setattr(npu_fx_compiler._NpuFxCompiler, "_get_compiled_gm", keep)
    x, y = torch.randn(3, device="npu"), torch.randn(3, device="npu")
    torch.compile(add_twice, backend=captured())(x, y)
    artifacts = npu_fx_compiler._CompiledFxArtifacts()
    artifacts.py_code = codes[0]
    loaded = npu_fx_compiler._CompiledFxGraph.load_artifacts(artifacts)
    (result,) = loaded(x, y)
    assert torch.equal(result, add_twice(x, y)) and result.device.type == "npu"


def test_constants_are_kept_in_the_code():
    scale = torch.tensor([2.0, 3.0], device="npu")
    gm = torch.fx.symbolic_trace(lambda x: x)
    gm.scale = scale
    place = next(iter(gm.graph.nodes))
    with gm.graph.inserting_after(place):
        held = gm.graph.get_attr("scale")
    with gm.graph.inserting_after(held):
        product = gm.graph.call_function(torch.ops.aten.mul.Tensor, (place, held))
    next(iter(reversed(gm.graph.nodes))).args = ((product,),)
    gm.recompile()
    code = npu_fx_compiler._CompiledFxGraph(gm, gm=gm).get_code()
    (result,) = npu_fx_compiler._compile_py_code(code).kernel(torch.ones(2, device="npu"))
    assert result.tolist() == [2.0, 3.0] and result.device.type == "npu"


def test_artifacts_of_another_version_are_refused():
    with pytest.raises(RuntimeError, match="expected artifacts of version 0.1, received 9"):
        npu_fx_compiler._CompiledFxGraph.load_artifacts(
            npu_fx_compiler._CompiledFxArtifacts(version="9", py_code="")
        )
    with pytest.raises(RuntimeError, match="expected py_code as text, received NoneType"):
        npu_fx_compiler._CompiledFxGraph.load_artifacts(npu_fx_compiler._CompiledFxArtifacts())
    with pytest.raises(RuntimeError, match="no code that could be kept"):
        npu_fx_compiler._CompiledFxGraph(print).dump_artifacts()


class Recorder(ConcreteGraphBase):
    """Builds a list of what it is told."""

    def __init__(self):
        self.told = []

    def context(self):
        import contextlib

        return contextlib.nullcontext()

    def parse_input(self, target, args, kwargs, meta_outputs):
        self.told.append(("input", target))
        return f"%{target}"

    def parse_output(self, target, args, kwargs, meta_outputs):
        self.told.append(("output", [pack.npu for pack in args[0]]))

    def parse_symlist(self, syms):
        return ["sym", *syms]

    def parse_node(self, target, args, kwargs, meta_outputs):
        self.told.append((str(target), args, tuple(meta_outputs.shape)))
        return f"%{target}"

    def dump(self, path): ...

    def compile(self): ...

    def __call__(self, *args): ...


def test_the_converter_drives_a_graph_of_the_program_s_own():
    gm = torch.fx.symbolic_trace(lambda x: (torch.ops.aten.relu.default(x),))
    graph = Recorder()
    made = npu_fx_compiler._NpuGraphConverter(gm, graph=graph, garbage_collect_values=False).run(
        torch.ones(2, 3)
    )
    assert made is graph and graph.told == [
        ("input", "x"),
        ("aten.relu.default", ["%x"], (2, 3)),
        ("output", ["%aten.relu.default"]),
    ]


def test_value_packs():
    pack = ValuePack(3, "node")
    assert (pack.meta, pack.npu, ValuePack(4).npu) == (3, "node", 4)
    assert _is_symlist([1, pack]) and not _is_symlist([1, 2]) and not _is_symlist([])
    assert ValuePack({"a": 1})["a"] == 1
    with pytest.raises(ValueError, match="a ValuePack of int has no items"):
        pack["a"]
    assert npu_fx_compiler._unpack_meta([pack, [pack, 1]], {"k": {"v": pack}}) == (
        [3, [3, 1]],
        {"k": {"v": 3}},
    )


def test_options_by_short_names():
    config = torchair.CompilerConfig()
    npu_fx_compiler._process_kwargs_options(
        config, {"options": {"force_eager": True, "inplace_pass": False}}
    )
    assert config.debug.run_eagerly
    assert config.debug.aclgraph.disable_reinplace_inplaceable_ops_pass
    with pytest.raises(ValueError, match="unknown option 'nothing'"):
        npu_fx_compiler._process_kwargs_options(config, {"options": {"nothing": 1}})


class Model(torch.nn.Module):
    def step(self, x):
        return x + 1


def test_caches_are_found_and_removed(tmp_path):
    model = Model()
    path = CompiledModel.get_cache_bin(model.step, cache_dir=str(tmp_path))
    run = torchair.inference.cache_compile(model.step, cache_dir=str(tmp_path))
    assert run(torch.ones(2, device="npu")).tolist() == [2.0, 2.0]
    assert CompiledModel.load(path).meta["name"].startswith("Model.step")
    ModelCacheSaver.remove_cache(path)
    with pytest.raises(FileNotFoundError):
        CompiledModel.load(path)
    ModelCacheSaver.remove_cache(str(tmp_path))
    assert not tmp_path.exists()
    ModelCacheSaver.remove_cache(str(tmp_path))


def test_nodes_written_by_hand_as_older_programs_do():
    from torchair.ge_concrete_graph import ge_apis as ge
    from torchair.ge_concrete_graph.ge_graph import (
        DataType,
        GeGraph,
        Tensor,
        auto_convert_to_tensor,
        compat_as_bytes,
        compat_as_bytes_list,
        get_default_ge_graph,
        get_invalid_desc,
        next_unique_name,
    )
    from torchair.ge_concrete_graph.utils import dtype_promote

    @auto_convert_to_tensor([False, False], [False, True])
    def FFN(x, bias, *, activation, node_name=None):
        op = get_default_ge_graph().op.add()
        op.type, op.name = "FFN", next_unique_name(node_name, "FFN")
        op.input.append(x.tensor)
        op.input_desc.add().CopyFrom(x.desc)
        if bias is None:
            op.input.append("")
            op.input_desc.add().CopyFrom(get_invalid_desc())
        op.attr["activation"].s = compat_as_bytes(activation)
        op.output_desc.add().name = "y"
        return Tensor(op, 0)

    with GeGraph("by_hand") as graph:
        y = FFN(ge.Const(1.0), None, activation="relu")
        again = FFN(2.0, None, activation="relu")
        half = dtype_promote(y, 3, target_dtype=torch.float16)
        with pytest.raises(AssertionError, match="FFN: x: expected a Tensor or a value"):
            FFN(None, None, activation="relu")
    nodes = {op.name: op for op in graph.op}
    assert y.tensor == "FFN:0" and again.tensor == "FFN_1:0"
    assert nodes["FFN"].attr["activation"].s == b"relu"
    assert nodes["FFN"].input_desc[1].attr["_is_unfed_optional"].i == 1
    assert all(one.dtype == DataType.DT_FLOAT16 for one in half)
    assert compat_as_bytes_list(["a", b"b"]) == [b"a", b"b"]


def test_a_converter_declares_what_it_supports():
    from torchair._ge_concrete_graph.fx2ge_converter import (
        Converter,
        _declare_supported_converters,
        declare_supported,
        register_fx_node_ge_converter,
    )
    from torchair._ge_concrete_graph.supported_declaration import F32, Support, T
    from torchair.ge import registry

    target = torch.ops.aten.special_erfcx.default
    before = registry._converters.get(target)

    @declare_supported([Support(F32(2, 3)), Support(T([1], dtype=torch.int32))])
    @register_fx_node_ge_converter(target)
    def convert(self, meta_outputs=None):
        return self

    try:
        assert isinstance(convert, Converter) and registry.has_converter(target)
        assert _declare_supported_converters()[target] is convert
        assert "tensor((2, 3), dtype=torch.float32)" in str(convert.supported_cases[0])
        with pytest.raises(AssertionError, match="expected Support, received 1"):
            declare_supported([1])(convert)
        with pytest.raises(NotImplementedError, match="is_lite"):
            Converter(target, is_lite=True)
    finally:
        registry._converters.pop(target)
        if before is not None:
            registry._converters[target] = before


def test_graphs_are_numbered():
    from torchair._acl_concrete_graph.replace_stream_event import GraphCounter

    GraphCounter.set_graph_id(41)
    assert GraphCounter.graph_id() == "graph_42_"
    assert npu_fx_compiler._next_unique_graph_id() == 43
    assert torch_npu.__version__


def test_a_program_that_replaces_dump_gm_sees_the_graph_after_each_pass(monkeypatch):
    from torchair._utils.graph_transform_observer import GraphTransformObserver

    seen = []
    monkeypatch.setattr(
        GraphTransformObserver, "dump_gm", lambda self, gm, file_name: seen.append(file_name)
    )
    x = torch.ones(2, device="npu")
    torch.compile(lambda x: x * 3 + 1, backend=captured())(x)
    assert seen[0] == "graph"
    assert "graph_after_optimize_noop_ops" in seen
