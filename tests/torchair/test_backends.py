"""The backends: what a graph may hold, and how it is run. The lowered graphs run uncompiled here."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

import torch_npu
import torchair
from tests.torchair.support import assert_same_as_eager, randn

pytestmark = pytest.mark.usefixtures("uncompiled")


def test_names_are_registered():
    assert {"npu", "npugraph_ex", "npugraphs"} <= set(torch._dynamo.list_backends())


def test_patches_of_the_device_come_and_go_without_those_of_graph_mode():
    from torch_npu import _patch

    wrapper = torch._TorchCompileInductorWrapper
    ours = wrapper.__call__
    assert ours.__module__ == "torch_npu.dynamo"
    _patch.undo()
    try:
        assert wrapper.__call__ is ours
    finally:
        _patch.apply()


@pytest.mark.parametrize("device, expected", [("npu", 1.0), ("cpu", 0.0)])
def test_is_npu_is_known_while_tracing(device, expected):
    compiled = torch.compile(lambda x: x + 1 if x.is_npu else x, backend="eager", fullgraph=True)
    assert compiled(torch.zeros(2, device=device)).tolist() == [expected] * 2


def test_alias_of_torch_npu():
    import torch_npu.dynamo.torchair.configs.compiler_config as alias

    assert torch_npu.dynamo.torchair is torchair
    assert alias.CompilerConfig is torchair.CompilerConfig


@pytest.mark.parametrize("backend", ["npu", "npugraph_ex", "npugraphs", "inductor"])
def test_backend_trains(backend):
    def f(x, w):
        return torch.softmax(x @ w, -1).square()

    assert_same_as_eager(
        f, randn(4, 6, requires_grad=True), randn(6, 5, requires_grad=True), backend=backend
    )


CASES = {
    "input is changed": (lambda x, y: (x.mul_(2), y + 1)[1], [(4, 4), (4, 4)]),
    "view of an input is changed": (lambda x: (x[0].add_(1), x.sum())[1], [(4, 4)]),
    "outputs alias the input": (lambda x: (x.view(-1), x[1:], x), [(4, 4)]),
    "outputs alias each other": (lambda x: (lambda y: (y, y.view(-1), y[0]))(x * 2), [(4, 4)]),
    "transposed": (lambda x: (x.t() + 1, x.permute(1, 0)), [(3, 5)]),
    "empty": (lambda x: x + 1, [(0, 3)]),
    "nothing to do": (lambda x: x, [(3,)]),
    "integers among results": (lambda x: (x.shape[0] * 2, x + 1), [(4,)]),
    "tensors made inside": (
        lambda x: x + torch.arange(4, device=x.device) + torch.full((4,), 2.0, device="npu:0"),
        [(4,)],
    ),
    "a constant": (lambda x: x + torch.tensor([1.0, 2.0, 3.0, 4.0], device="npu"), [(4,)]),
    "back on the host": (lambda x: ((x * 2).cpu(), x + 1), [(4,)]),
    "complex": (lambda x: torch.fft.fft(x).abs(), [(8,)]),
    "a break": (lambda x: (x * 2, torch._dynamo.graph_break(), x + 1), [(4,)]),
    "a branch on data": (lambda x: x + 1 if (x * 2).sum() > 0 else x - 1, [(4,)]),
    "cond": (
        lambda x: torch.cond(
            x.sum() > 0, lambda v: v * 2, lambda v: v - torch.ones(4, device="npu"), (x,)
        ),
        [(4,)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_inference(name):
    function, shapes = CASES[name]
    assert_same_as_eager(function, *(randn(*shape) for shape in shapes))


def test_host_tensors_beside_device_tensors():
    def f(x, scalar, other):
        return x * scalar + other.to(x.device), other + 1

    assert_same_as_eager(f, randn(4), torch.tensor(2.0), torch.arange(4.0))


def test_gradients_through_aliases():
    assert_same_as_eager(lambda x: (x.view(-1) * 2, x.t()), randn(4, 4, requires_grad=True))


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: torch.rand_like(x),
        lambda x: torch.randn(3, device="npu"),
        lambda x: F.dropout(x, 0.3),
        lambda x: torch.bernoulli(torch.full_like(x, 0.5)),
        lambda x: torch.randint(0, 9, (5,), device="npu"),
        lambda x: torch.randperm(6, device="npu"),
        lambda x: x.clone().uniform_() + torch.empty_like(x).exponential_(),
        lambda x: torch.multinomial(x.abs(), 2),
        lambda x: torch_npu._npu_dropout(x, 0.5)[0],
    ],
)
def test_random_numbers_are_the_device_generators(draw):
    """The same seed gives the numbers of eager, and advances the generator as far."""
    x = randn(4, 4)
    compiled = torch.compile(draw, backend="npu")
    torch.npu.manual_seed(5)
    expected, behind = draw(x), torch.npu.get_rng_state()
    torch.npu.manual_seed(5)
    actual = compiled(x)
    assert torch.equal(actual, expected)
    assert torch.equal(torch.npu.get_rng_state(), behind)
    assert not torch.equal(compiled(x), actual)


def test_dropout_in_training():
    def f(x, w):
        return F.dropout(x @ w, 0.5).relu()

    assert_same_as_eager(f, randn(8, 8, requires_grad=True), randn(8, 8, requires_grad=True))


def test_half_products_are_eagers_to_the_bit():
    def f(x, w, image, kernel):
        return x @ w, F.conv2d(image, kernel, padding=1)

    half = torch.bfloat16
    inputs = [randn(6, 8), randn(8, 4), randn(2, 3, 5, 5), randn(4, 3, 3, 3)]
    assert_same_as_eager(f, *(v.to(half).requires_grad_() for v in inputs), tolerance=0)


def test_products_of_two_types():
    """The card promotes them; the result has the type of the first."""
    for first, second in ((torch.float16, torch.float32), (torch.float32, torch.bfloat16)):
        a, b = randn(4, 5, dtype=first), randn(5, 3, dtype=second)
        batch, others = randn(2, 4, 5, dtype=first), randn(2, 5, 3, dtype=second)
        added = randn(2, 4, 3, dtype=first)
        results = torch.compile(
            lambda a, b, batch, others, added: (
                a @ b,
                torch.bmm(batch, others),
                torch.baddbmm(added, batch, others, beta=2),
            ),
            backend="npu",
        )(a, b, batch, others, added)
        wide = batch.float() @ others.float()
        for result, exact in zip(
            results, (a.float() @ b.float(), wide, 2 * added.float() + wide), strict=True
        ):
            assert result.dtype == first
            torch.testing.assert_close(result, exact.to(first), rtol=2e-3, atol=2e-3)


def test_batched_products_of_other_types_are_refused():
    with FakeTensorMode():
        for dtype in (torch.bfloat16, torch.int32):
            with pytest.raises(RuntimeError, match="dtype|scalar type"):
                torch.bmm(
                    torch.ones(2, 3, 4, dtype=torch.float16, device="npu"),
                    torch.ones(2, 4, 3, dtype=dtype, device="npu"),
                )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_fused_attention(dtype):
    q, k, v = (randn(2, 4, 8, 16, dtype=dtype, requires_grad=True) for _ in range(3))
    assert_same_as_eager(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), q, k, v
    )


def test_autocast():
    def f(x, w):
        with torch.autocast("npu", torch.bfloat16):
            return x @ w

    assert_same_as_eager(f, randn(4, 6, requires_grad=True), randn(6, 5), tolerance=0)


def test_other_devices_and_graphs_without_inputs():
    assert_same_as_eager(lambda x: x * 2 + torch.ones(4, device="npu:1"), randn(4, device="npu:1"))
    assert_same_as_eager(lambda: torch.ones(4, device="npu:1") * 3)


def test_two_devices_in_one_graph():
    assert_same_as_eager(
        lambda x, y: (x * 2, x.to("npu:1") + y), randn(4), randn(4, device="npu:1")
    )


def test_operators_that_write_their_arguments(uncompiled):
    def f(cache, index, update):
        torch_npu.npu_scatter_nd_update_(cache, index, update)
        return cache * 2

    assert_same_as_eager(f, randn(6, 4), torch.tensor([[1], [3]], device="npu"), randn(2, 4))
    assert any("softnpu_host" in str(node.target) for node in uncompiled[0].graph.nodes)


def test_native_operators_are_called_and_others_dissolve(uncompiled):
    def f(q, x, gamma):
        attention = torch_npu.npu_fusion_attention(q, q, q, 4, "BSND")[0]
        return attention, torch_npu.npu_rms_norm(x, gamma)[0]

    assert_same_as_eager(f, randn(2, 8, 4, 16, dtype=torch.float16), randn(3, 8), randn(8))
    names = " ".join(str(node.target) for node in uncompiled[0].graph.nodes)
    assert "kernel_npu_npu_fusion_attention" in names
    assert "rms_norm" not in names and "rsqrt" in names


@pytest.fixture(scope="module")
def users_operators():
    library = torch.library.Library("torchair_tests", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.define("bump_(Tensor(a!) x) -> ()")
    library.impl("twice", lambda x: x * 2, "PrivateUse1")
    library.impl("bump_", lambda x: (x.add_(1), None)[1], "PrivateUse1")
    torch.library.register_fake("torchair_tests::twice", torch.empty_like)
    torch.library.register_fake("torchair_tests::bump_", lambda x: None)
    yield torch.ops.torchair_tests
    library._destroy()


def test_operators_of_other_libraries(users_operators):
    """They know the npu device alone, and are called with its tensors. GE graphs need converters."""

    def f(x):
        y = x + 1
        users_operators.bump_(x)
        return users_operators.twice(y) * 3 + x

    for name in ("twice", "bump_"):
        torchair.register_fx_node_ge_converter(getattr(users_operators, name).default)(
            lambda x: torchair.ge.custom_op("Users", inputs={"x": x}, outputs=["y"])
        )
    assert_same_as_eager(f, randn(4))


def test_captured_graphs_take_any_operator(users_operators):
    assert_same_as_eager(lambda x: users_operators.twice(x) + 1, randn(4), backend="npugraph_ex")


def test_recompiles_only_for_new_shapes(counted):
    f = torch.compile(lambda x: x * 2 + 1, backend="npu", dynamic=False)
    for size in (4, 4, 5, 4, 5):
        f(randn(size))
    assert len(counted) == 2


def test_dynamic_shapes_compile_once(counted):
    f = torch.compile(lambda x: (x.view(x.shape[0], -1) * 2).sum(1), backend="npu", dynamic=True)
    for size in (4, 7, 12):
        x = randn(size, 6)
        torch.testing.assert_close(f(x), (x * 2).sum(1))
    assert counted == ["forward"]


def test_threads():
    f = torch.compile(lambda x: torch.sin(x) * 2, backend="npu")
    f(randn(16))
    wrong = []

    def work(device):
        for size in (16, 32):
            x = randn(size, device=f"npu:{device}")
            if not torch.allclose(f(x), torch.sin(x) * 2):
                wrong.append(device)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_memory_comes_from_the_device():
    f = torch.compile(lambda x: x * 2, backend="npu")
    x = randn(256, 256)
    f(x)
    before = torch.npu.memory_allocated()
    y = f(x)
    assert torch.npu.memory_allocated() - before == y.nbytes
    del y
    assert torch.npu.memory_allocated() == before


def test_custom_decompositions():
    table = {torch.ops.aten.add.Tensor: lambda a, b: a * 3}
    backend = torchair.get_npu_backend(custom_decompositions=table)
    x = randn(4)
    assert torch.equal(torch.compile(lambda a, b: a + b, backend=backend)(x, x), x * 3)


def test_compiler_in_a_backend_of_ones_own():
    from torch._functorch.aot_autograd import aot_module_simplified

    def backend(gm, example_inputs):
        compiler = torchair.get_compiler(torchair.CompilerConfig())
        return aot_module_simplified(gm, example_inputs, fw_compiler=compiler)

    assert_same_as_eager(lambda x, y: x + y, randn(2, 2), randn(2, 2), backend=backend)


def test_backend_refuses_other_configurations():
    with pytest.raises(TypeError, match="compiler_config must be a CompilerConfig, received dict"):
        torchair.get_npu_backend(compiler_config={})


def test_backend_npu_takes_no_options():
    f = torch.compile(lambda x: x + 1, backend="npu", options={"clone_input": False})
    with pytest.raises(Exception, match='backend "npu" takes its options from a CompilerConfig'):
        f(randn(2))


def test_backend_npugraph_ex_names_its_options():
    f = torch.compile(lambda x: x + 1, backend="npugraph_ex", options={"clone_inputs": False})
    with pytest.raises(Exception, match="unknown option 'clone_inputs', the options are .*clone_"):
        f(randn(2))
