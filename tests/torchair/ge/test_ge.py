"""The graph engine's graphs: format, building blocks, conversion, dumps, export, and re-execution to the same numbers."""

from __future__ import annotations

import pytest
import torch
from google.protobuf import text_format

import torch_npu
from tests.torchair.models import Mlp
from tests.torchair.support import randn
from torchair import CompilerConfig, ge, get_npu_backend
from torchair.ge import export as exporting
from torchair.ge.export import dynamo_export
from torchair.ge.graph import Graph
from torchair.ge.interpreter import Interpreter, load
from torchair.ge.ir import GraphDef, ModelDef


@pytest.fixture
def converted(monkeypatch):
    """The graphs that compilation made."""
    graphs = []
    original = ge.convert

    def keep(*args, **kwargs):
        graphs.append(original(*args, **kwargs))
        return graphs[-1]

    monkeypatch.setattr(ge, "convert", keep)
    return graphs


def eager_config():
    config = CompilerConfig()
    config.debug.run_eagerly = True
    return config


def compile_and_run(function, *inputs, dynamic=False):
    backend = get_npu_backend(compiler_config=eager_config())
    with torch.no_grad():
        return torch.compile(function, backend=backend, dynamic=dynamic)(*inputs)


def test_field_numbers_are_upstreams():
    fields = {f.name: f.number for f in GraphDef.DESCRIPTOR.fields}
    assert fields == {"name": 1, "input": 4, "output": 5, "op": 6, "attr": 11}
    assert ModelDef.DESCRIPTOR.fields_by_name["graph"].number == 7
    # field 6 (op), length 5: field 1 (name) "abc"
    assert GraphDef(op=[{"name": "abc"}]).SerializeToString() == b"\x32\x05\x0a\x03abc"


def test_numbers_of_types_and_formats():
    assert (ge.DataType.DT_BF16, ge.DataType.DT_INT64, ge.DataType.DT_FLOAT4_E1M2) == (27, 9, 41)
    assert ge.Format.FORMAT_FRACTAL_NZ.value == 29


def test_custom_op_with_dynamic_inputs_and_outputs():
    with Graph() as graph:
        a = ge.Const(0, dtype=ge.DataType.DT_INT64, node_name="Const0")
        b = ge.Cast(1.0, dst_type=ge.DataType.DT_INT64)
        m, n = ge.custom_op(
            "MyOp",
            inputs={"x": a, "z": None, "dy": [a, b]},
            attrs={"rattr": ge.attr.ListInt([1, 2, 3]), "oattr": ge.attr.Float(1.0)},
            outputs=["m", ("n", 3)],
        )
    op = graph.proto.op[-1]
    assert list(op.input) == ["Const0:0", "", "Const0:0", "Cast:0"]
    assert [d.name for d in op.input_desc] == ["x", "z", "dy0", "dy1"]
    assert [d.name for d in op.output_desc] == ["m", "n0", "n1", "n2"]
    assert list(op.attr["rattr"].list.i) == [1, 2, 3]
    assert (m.index, [one.index for one in n]) == (0, [1, 2, 3])


def test_errors_of_building_blocks():
    with Graph():
        x = ge.Const(1, node_name="a")
        with pytest.raises(AssertionError, match="'a' is already used"):
            ge.Const(1, node_name="a")
        with pytest.raises(
            AssertionError, match=r"attr 'k' to be one of .*ge.attr.Int.*received int"
        ):
            ge.custom_op("M", inputs={"x": x}, attrs={"k": 1}, outputs=["y"])
        with pytest.raises(AssertionError, match="Clone: expected a Tensor"):
            ge.Clone(3)
        with pytest.raises(ValueError, match="received a Tensor of the graph"):
            ge.Const(x)
        with pytest.raises(TypeError):
            ge.attr.Int("text")


@pytest.mark.parametrize("dynamic", [False, True])
def test_interpreter_gives_eagers_numbers(converted, dynamic):
    model = Mlp().npu()
    x = randn(5, 32)
    expected = compile_and_run(model, x, dynamic=dynamic)
    proto = GraphDef.FromString(converted[0].proto.SerializeToString())
    weights = {tuple(p.shape): p for p in model.parameters()}
    inputs = []
    datas = [op for op in proto.op if op.type == "Data"]
    same_shape = iter([model.down.bias, model.norm.weight, model.norm.bias])
    for op in datas:
        shape = tuple(op.output_desc[0].shape.dim)
        if shape == ():
            inputs.append(5)
        elif shape in ((5, 32), (-1, 32)):
            inputs.append(x)
        else:
            inputs.append(next(same_shape) if shape == (32,) else weights[shape])
    (actual,) = Interpreter(proto)(
        *[i.detach() if isinstance(i, torch.Tensor) else i for i in inputs]
    )
    torch.testing.assert_close(actual, expected)


def test_symbols_mutation_and_this_packages_operators(converted):
    def function(x, cache, gamma):
        y = torch_npu.npu_rms_norm(x, gamma)[0].reshape(x.shape[0] * 2, -1)
        cache.add_(y.sum())
        return torch_npu.npu_swiglu(y), x.mean(0) > 0, x[:, 1:3]

    x, cache, gamma = randn(6, 8), torch.zeros(3, device="npu"), randn(8)
    torch._dynamo.mark_dynamic(x, 0)
    expected = compile_and_run(function, x, cache.clone(), gamma, dynamic=None)
    (graph,) = converted
    types = [op.type for op in graph.proto.op]
    assert {"RmsNorm", "SwiGlu", "Assign", "Pack", "ReduceMean", "Greater"} <= set(types)
    values = {(): 6, (-1, 8): x, (8,): gamma, (3,): cache}
    datas = [tuple(op.output_desc[0].shape.dim) for op in graph.proto.op if op.type == "Data"]
    outputs = Interpreter(graph.proto)(*[values[shape] for shape in datas])
    for theirs, mine in zip(expected, outputs, strict=True):
        torch.testing.assert_close(mine, theirs)
    assert cache.abs().sum() > 0


def test_register_converter_enters_the_graph(converted):
    with torch.library._scoped_library("getest", "FRAGMENT") as library:
        library.define("my_op(Tensor x, float scale) -> Tensor")
        library.impl("my_op", lambda x, scale: x * scale, "CompositeExplicitAutograd")
        target = torch.ops.getest.my_op.default

        @ge.register_fx_node_ge_converter(target)
        def convert_my_op(x, scale, meta_outputs: ge.TensorSpec = None):
            assert (meta_outputs.dtype, meta_outputs.rank, meta_outputs.size) == (0, 1, [4])
            attrs = {"scale": ge.attr.Float(scale)}
            return ge.custom_op("MyOp", inputs={"x": x}, attrs=attrs, outputs=["y"])

        x = randn(4)
        expected = compile_and_run(lambda x: torch.ops.getest.my_op(x, 2.0), x)
    assert "MyOp" in [op.type for op in converted[0].proto.op]
    with pytest.raises(NotImplementedError, match="no kernel for type MyOp"):
        Interpreter(converted[0].proto)(x)
    kernels = {"MyOp": lambda x, scale: x * scale}
    torch.testing.assert_close(Interpreter(converted[0].proto, kernels)(x)[0], expected)


def _bump(x, y):
    x.add_(y)


def test_branches_and_operators_that_write(converted):
    with torch.library._scoped_library("getest2", "FRAGMENT") as library:
        library.define("bump_(Tensor(a!) x, Tensor y) -> ()")
        library.impl("bump_", _bump, "CompositeExplicitAutograd")
        library.impl("bump_", lambda x, y: None, "Meta")

        @ge.register_fx_node_ge_converter(torch.ops.getest2.bump_.default)
        def convert(x, y):
            return ge.custom_op("Bump", inputs={"x": x, "y": y}, outputs=["x"])

        def function(x, y):
            z = x * 2
            torch.ops.getest2.bump_(z, y)
            return torch.cond(x[0] > 0, lambda z: z + 1, lambda z: z - 1, (z,))

        for sign in (1.0, -1.0):
            converted.clear()
            x, y = torch.full((4,), sign, device="npu"), randn(4)
            torch._dynamo.reset()
            expected = compile_and_run(function, x, y)
            assert {"Bump", "If"} <= {op.type for op in converted[0].proto.op}
            (actual,) = Interpreter(converted[0].proto, {"Bump": lambda x, y: x.add_(y)})(x, y)
            torch.testing.assert_close(actual, expected)
            torch.testing.assert_close(actual, x * 2 + y + sign)


def test_unsupported_are_all_named():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(len, (x,)), graph.call_function(max, (x,))))
    with pytest.raises(RuntimeError, match=r"len.*max"):
        ge.convert(torch.fx.GraphModule({}, graph), [], config=None, name="g")


def test_operators_without_a_converter_are_named_in_one_error(converted):
    """A user's operators, also those that write and those in branches, and ATen's beyond what upstream converts."""
    with torch.library._scoped_library("getest3", "FRAGMENT") as library:
        library.define("plain(Tensor x) -> Tensor")
        library.define("writes_(Tensor(a!) x) -> ()")
        library.define("inside(Tensor x) -> Tensor")
        library.impl("plain", torch.neg, "CompositeExplicitAutograd")
        library.impl("writes_", lambda x: None, "CompositeExplicitAutograd")
        library.impl("inside", torch.neg, "CompositeExplicitAutograd")

        def function(x):
            y = torch.linalg.qr(torch.ops.getest3.plain(x)).R
            torch.ops.getest3.writes_(y)
            return torch.cond(y.sum() > 0, torch.ops.getest3.inside, lambda y: y.clone(), (y,))

        names = ["aten.linalg_qr.default", "getest3.inside.default", "getest3.plain.default"]
        names = ".*".join([*names, r"getest3.writes_.default; torchair\.register_fx_node"])
        with pytest.raises(RuntimeError, match=f"operators without a converter: .*{names}"):
            compile_and_run(function, randn(3, 3))
    assert converted == []


def test_every_core_operator_has_a_converter():
    core = set()
    for name in torch._C._dispatch_get_all_op_names():
        space, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        if space == "aten":
            operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
            core |= {operator} if torch.Tag.core in operator.tags else set()
    assert len(core) > 150
    assert [op for op in core if not ge.has_converter(op)] == []


@pytest.mark.parametrize("suffix", ["txt", "pbtxt", "py"])
def test_graph_dump(tmp_path, suffix):
    config = eager_config()
    config.debug.graph_dump.type = suffix
    config.debug.graph_dump.path = str(tmp_path)
    compiled = torch.compile(lambda x: x * 10, backend=get_npu_backend(compiler_config=config))
    compiled(randn(2))
    files = sorted(tmp_path.iterdir())
    assert [f.name.split("_graph_")[0] for f in files] == ["dynamo_optimized", "dynamo_original"]
    text = files[0].read_text()
    if suffix == "txt":
        ops = text_format.Parse(text, GraphDef()).op
        assert [op.type for op in ops] == ["Data", "Const", "Mul", "NetOutput"]
    else:
        assert {"pbtxt": 'op: "Mul"', "py": "Mul_0 = ge.Mul("}[suffix] in text


def test_python_dump_builds_the_graph_again(tmp_path, converted):
    """The file is a program: its graph computes what the dumped one does."""
    weight = randn(6, 4)

    def function(x):
        parts = torch.split(torch.cat([x, x + 1]) @ weight, 2)
        normed, index = torch.sort(torch_npu.npu_rms_norm(parts[1], weight[0])[0])
        table = torch.tensor([0.5, 1.5, 2.5, 3.5], device="npu")
        return torch.nn.functional.layer_norm(normed, (4,)) * 10 + table, index, parts[0].sum()

    x = randn(3, 6)
    expected = compile_and_run(function, x)
    path = tmp_path / "graph.py"
    converted[0].dump(str(path))
    with ge.GeGraph("again") as again:
        exec(compile(path.read_text(), str(path), "exec"), {})
    inputs = {tuple(value.shape): value for value in (x, weight)}
    datas = [
        inputs[tuple(op.output_desc[0].shape.dim)] for op in again.proto.op if op.type == "Data"
    ]
    for mine, theirs in zip(Interpreter(again.proto)(*datas), expected, strict=True):
        torch.testing.assert_close(mine, theirs)
    kept = [(op.type, op.name, list(op.input)) for op in converted[0].proto.op]
    assert [(op.type, op.name, list(op.input)) for op in again.proto.op] == kept


def test_custom_op_by_position():
    with Graph() as graph:
        x = ge.Const([1.0, 2.0])
        y, rstd = ge.custom_op("RmsNorm", x, x, 1e-6)
        ge.custom_op("MyOp", x, None, [x, x], [1, 2], 1.0)
        with pytest.raises(
            AssertionError, match=r"'Add': expected at most 2 arguments .*received 3"
        ):
            ge.custom_op("Add", x, x, x)
    norm, mine = graph.proto.op[-2:]
    assert [d.name for d in norm.input_desc] == ["self", "gamma"]
    assert norm.attr["epsilon"].f == pytest.approx(1e-6)
    assert (y.node.name, rstd.index) == ("RmsNorm", 1)
    assert [d.name for d in mine.input_desc] == ["x0", "x1", "x20", "x21"]
    assert list(mine.attr["attr0"].list.i) == [1, 2]


def test_options_are_attributes_of_the_graph(converted):
    config = eager_config()
    config.ge_config.oo_level = "O1"
    config.experimental_config.enable_ref_data = True
    with pytest.warns(UserWarning, match="no effect on an emulated device"):
        backend = get_npu_backend(compiler_config=config)
    torch.compile(lambda x: x.add_(1), backend=backend)(randn(4))
    proto = converted[0].proto
    assert proto.attr["ge.oo.level"].s == b"O1" and proto.attr["ge.topoSortingMode"].s == b"3"
    assert [op.type for op in proto.op if "index" in op.attr] == ["RefData"]


@pytest.mark.parametrize("external", [False, True])
def test_export_and_read_back(tmp_path, monkeypatch, external):
    if external:
        monkeypatch.setattr(exporting, "LARGEST_MODEL", 100)
    model = Mlp()
    x = torch.randn(3, 32)
    dynamo_export(x, model=model, export_path=str(tmp_path / "out"), dynamic=True)
    files = {f.name for f in (tmp_path / "out").iterdir()}
    weights = (
        {name.replace(".", "_") for name, _ in model.named_parameters()} if external else set()
    )
    assert files == {"export.air", "dynamo.pbtxt"} | weights
    proto = load(str(tmp_path / "out" / "export.air"))
    kinds = [op.type for op in proto.op]
    assert kinds.count("FileConstant") == (6 if external else 0)
    datas = [list(op.output_desc[0].shape.dim) for op in proto.op if op.type == "Data"]
    assert sorted(datas) == [[], [-1, 32]]
    for rows in (3, 7):
        x = torch.randn(rows, 32)
        (actual,) = Interpreter(proto, device="cpu")(*[rows if d == [] else x for d in datas])
        torch.testing.assert_close(actual, model(x).detach())
