"""AOTAutograd's cache of whole programs with our backends: what hits, what does not, what passes it by."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.utils import counters
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache
from torch._inductor.codecache import FxGraphCache
from torch._inductor.output_code import CompiledFxGraph
from torch._inductor.utils import fresh_inductor_cache

import torch_npu  # noqa: F401
import torchair
from softnpu import settings
from torchair import _output_code, _program_cache, compiler, npu_fx_compiler, patterns
from torchair._output_code import NpuCompiledFxGraph
from torchair.compiler import get_npu_backend
from torchair.core.utils import EVENT_LEVEL, logger
from torchair.inference import set_dim_gears


@pytest.fixture(scope="module", autouse=True)
def folder():
    """A folder for compiled kernels, which are the same in many tests; programs are kept for one test."""
    with fresh_inductor_cache():
        yield


@pytest.fixture(autouse=True)
def cache(folder):
    torch._dynamo.reset()
    counters.clear()
    AOTAutogradCache.clear()
    FxGraphCache.clear()
    with functorch_config.patch(enable_autograd_cache=True):
        yield
    torch._dynamo.reset()


@pytest.fixture
def lowered(monkeypatch):
    """The graphs that were lowered to the host."""
    from torchair._host import run

    graphs = []
    before = run.lower

    def lower(gm, *args):
        graphs.append(gm)
        return before(gm, *args)

    monkeypatch.setattr(run, "lower", lower)
    return graphs


def config(mode: str = "max-autotune") -> torchair.CompilerConfig:
    made = torchair.CompilerConfig()
    made.mode = mode
    return made


def hits() -> int:
    return counters["aot_autograd"]["autograd_cache_hit"]


def saved() -> int:
    return counters["aot_autograd"]["autograd_cache_saved"]


def scale(x):
    return torch.relu(x) * 2 + 1


BACKENDS = {
    "TorchAir": lambda: get_npu_backend(),
    "captured": lambda: get_npu_backend(compiler_config=config("reduce-overhead")),
    "npugraph_ex": lambda: "npugraph_ex",
    "no backend": lambda: "inductor",
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", BACKENDS)
def test_a_second_compilation_neither_traces_nor_lowers(name, dynamic, lowered):
    weight = torch.randn(8, 4, device="npu")

    def function(x):
        return torch.relu(x @ weight), (x + 1).sum(-1)

    for round_ in range(2):
        made = torch.compile(function, backend=BACKENDS[name](), dynamic=dynamic)
        for rows in (3, 5):
            x = torch.randn(rows, 8, device="npu")
            for got, want in zip(made(x), function(x), strict=True):
                torch.testing.assert_close(got, want)
                assert got.device == x.device
        if round_ == 0:
            count = len(lowered)
            assert count == (1 if dynamic else 2) and saved() == count
        torch._dynamo.reset()
    assert len(lowered) == count and hits() == count


@pytest.mark.parametrize("name", ["TorchAir", "no backend"])
def test_gradients_of_a_program_from_the_cache(name, lowered):
    model = torch.nn.Linear(6, 3).npu()
    x = torch.randn(4, 6, device="npu", requires_grad=True)
    sources = [x, *model.parameters()]
    expected = torch.autograd.grad(torch.tanh(model(x)).sum(), sources)
    for _ in range(2):
        made = torch.compile(lambda x: torch.tanh(model(x)).sum(), backend=BACKENDS[name]())
        for mine, theirs in zip(torch.autograd.grad(made(x), sources), expected, strict=True):
            torch.testing.assert_close(mine, theirs)
        torch._dynamo.reset()
    assert len(lowered) == 2 and hits() == 1  # forward and backward, once


def test_a_captured_program_from_the_cache_replays_with_its_options():
    options = config("reduce-overhead")
    options.debug.aclgraph.enable_output_clone = True
    state = torch.zeros(4, device="npu")

    def step(x):
        state.add_(x)
        return state * 2

    backend = get_npu_backend(compiler_config=options)
    for round_ in range(2):
        state.zero_()
        made = torch.compile(step, backend=backend)
        with torch.no_grad():
            results = [made(torch.full((4,), value, device="npu")) for value in (1.0, 2.0, 3.0)]
        assert [one.tolist() for one in results] == [[2.0] * 4, [6.0] * 4, [12.0] * 4], round_
        torch._dynamo.reset()
    assert hits() == 1


def test_host_operators_constants_and_results_on_the_host():
    """What the code calls by name, what the graph holds, and outputs that leave the device, all in one program."""

    def function(x):
        norm, _ = torch.ops.npu.npu_rms_norm(x, torch.ones(8, device="npu", dtype=x.dtype))
        offset = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], device="npu")
        return norm + offset.to(x.dtype), x.float().sum().cpu()

    x = torch.randn(3, 8, device="npu")
    want = function(x)
    for _ in range(2):
        got = torch.compile(function, backend=get_npu_backend())(x)
        assert [one.device.type for one in got] == ["npu", "cpu"]
        for mine, theirs in zip(got, want, strict=True):
            torch.testing.assert_close(mine, theirs)
        torch._dynamo.reset()
    assert hits() == 1


def test_random_numbers_of_a_program_from_the_cache_continue_the_devices():
    def noise(x):
        return torch.nn.functional.dropout(x, 0.5)

    x = torch.ones(64, device="npu")
    seen = []
    for _ in range(2):
        torch.npu.manual_seed(3)
        made = torch.compile(noise, backend=get_npu_backend())
        seen.append([made(x).tolist(), made(x).tolist()])
        torch._dynamo.reset()
    assert hits() == 1
    assert seen[0] == seen[1] and seen[0][0] != seen[0][1]


def test_what_is_returned_is_inductors_own_output(monkeypatch):
    kept = []
    before = NpuCompiledFxGraph.of.__func__

    def of(cls, code, recipe, run):
        kept.append(code)
        return before(cls, code, recipe, run)

    monkeypatch.setattr(NpuCompiledFxGraph, "of", classmethod(of))
    torch.compile(scale, backend=get_npu_backend())(torch.ones(4, device="npu"))
    (code,) = kept
    assert type(code) is CompiledFxGraph and "def call" in code.source_code


# --- the key: what changes the result is part of it -----------------------------------------------------------------


def changed_option():
    other = config()
    other.experimental_config.remove_noop_ops = False
    return get_npu_backend(compiler_config=other)


OTHER_BACKENDS = {
    "an option": changed_option,
    "the mode": lambda: get_npu_backend(compiler_config=config("reduce-overhead")),
    "a decomposition of torch": lambda: get_npu_backend(
        custom_decompositions=torch._decomp.get_decompositions([torch.ops.aten.relu])
    ),
    "a decomposition of one's own": lambda: get_npu_backend(
        custom_decompositions={torch.ops.aten.relu.default: lambda x: x.clamp(min=0)}
    ),
    "no backend": lambda: "inductor",
}


@pytest.mark.parametrize("name", OTHER_BACKENDS)
def test_another_backend_does_not_hit(name):
    x = torch.randn(6, device="npu")
    torch.compile(scale, backend=get_npu_backend())(x)
    torch._dynamo.reset()
    got = torch.compile(scale, backend=OTHER_BACKENDS[name]())(x)
    assert saved() >= 1 and hits() == 0
    torch.testing.assert_close(got, scale(x))


def test_a_changed_decomposition_is_seen():
    """A key cannot hold a function of the program's: each compilation calls the one that it was given."""
    x = torch.tensor([-1.0, 2.0], device="npu")

    def with_floor(low):
        def relu(x):
            return x.clamp(min=low)

        return get_npu_backend(custom_decompositions={torch.ops.aten.relu.default: relu})

    for low, want in ((0.0, [1.0, 5.0]), (-0.5, [0.0, 5.0])):
        assert torch.compile(scale, backend=with_floor(low))(x).tolist() == want
        torch._dynamo.reset()


@pytest.mark.parametrize("change", [{"strict": False}, {"soc": "Ascend910B1"}])
def test_other_settings_do_not_hit(change):
    x = torch.randn(6, device="npu")
    torch.compile(scale, backend=get_npu_backend())(x)
    torch._dynamo.reset()
    with settings.override(**change):
        torch.compile(scale, backend=get_npu_backend())(x)
    assert saved() == 2 and hits() == 0


@pytest.mark.parametrize("name", ["__version__", "_sources"])
def test_another_version_or_source_does_not_hit(name, monkeypatch):
    x = torch.randn(6, device="npu")
    torch.compile(scale, backend=get_npu_backend())(x)
    torch._dynamo.reset()
    other = "0.0.0.other" if name == "__version__" else lambda: "other files"
    monkeypatch.setattr(_program_cache, name, other)
    torch.compile(scale, backend=get_npu_backend())(x)
    assert saved() == 2 and hits() == 0


def test_the_sources_are_told_apart_by_their_files(tmp_path, monkeypatch):
    """A file that was changed counts, as one does that was added."""
    package = tmp_path / "softnpu"
    package.mkdir()
    file = package / "__init__.py"
    file.write_text("a = 1\n")
    module = type(torch)("softnpu")
    module.__file__ = str(file)
    monkeypatch.setattr(_program_cache, "_OURS", ("softnpu",))
    monkeypatch.setitem(_program_cache.sys.modules, "softnpu", module)
    digest = _program_cache._sources.__wrapped__
    seen = {digest()}
    file.write_text("a = 12\n")
    seen.add(digest())
    (package / "more.py").write_text("")
    seen.add(digest())
    assert len(seen) == 3


def test_gears_are_part_of_the_key():
    def run(sizes):
        torch._dynamo.reset()
        x = torch.randn(4, 3, device="npu")
        set_dim_gears(x, {0: sizes})
        made = torch.compile(scale, backend=get_npu_backend(), dynamic=True)
        torch.testing.assert_close(made(x), scale(x))
        return made

    run([4, 8])
    run([4, 16])
    assert hits() == 0 and saved() == 2
    made = run([4, 16])
    assert hits() == 1
    with pytest.raises(RuntimeError, match=r"in no gear, the gears are \[\(4,\), \(16,\)\]"):
        made(torch.randn(8, 3, device="npu"))


# --- what passes it by ----------------------------------------------------------------------------------------------


def compiled_twice(backend, function, *inputs) -> int:
    """How many graphs were kept or found in two compilations."""
    want = function(*inputs)
    for _ in range(2):
        torch.testing.assert_close(torch.compile(function, backend=backend)(*inputs), want)
        torch._dynamo.reset()
    return hits() + saved()


def test_passes_of_the_program_see_every_graph():
    seen = []
    options = config()
    options.post_grad_custom_pre_pass = lambda gm, inputs, config: seen.append(gm)
    backend = get_npu_backend(compiler_config=options)
    assert compiled_twice(backend, scale, torch.randn(6, device="npu")) == 0
    assert len(seen) == 2


def test_registered_patterns_apply_to_every_graph(monkeypatch):
    seen = []

    def search(x):
        return torch.sigmoid(x) * x

    def replace(x):
        return torch.nn.functional.silu(x)

    patterns.register_replacement(
        search, replace, [torch.empty(2, device="npu")], extra_check=lambda m: not seen.append(m)
    )
    try:
        found = compiled_twice(get_npu_backend(), search, torch.randn(6, device="npu"))
    finally:
        patterns.reset()
    assert found == 0 and len(seen) == 2


@pytest.mark.parametrize("step", ["_optimize_fx", "_get_compiled_gm"])
def test_programs_that_replace_a_step_see_every_graph(step, monkeypatch):
    seen = []
    owner = npu_fx_compiler if step == "_optimize_fx" else compiler.NpuFxCompiler
    before = getattr(owner, step)
    x = torch.randn(6, device="npu")
    torch.compile(scale, backend=get_npu_backend())(x)  # kept
    torch._dynamo.reset()

    def wrapped(*args):
        seen.append(args)
        return before(*args)

    monkeypatch.setattr(owner, step, wrapped)
    assert saved() == 1
    assert compiled_twice(get_npu_backend(), scale, x) == 1 and len(seen) == 2


def test_dumps_and_eager_runs_are_not_kept(tmp_path):
    eager, dumped, saving = config(), config(), config("reduce-overhead")
    eager.debug.run_eagerly = True
    dumped.debug.graph_dump.type = "txt"
    dumped.debug.graph_dump.path = str(tmp_path)
    saving.dump_config.enable_dump = True
    saving.dump_config.dump_path = str(tmp_path)
    for options in (eager, dumped, saving):
        backend = get_npu_backend(compiler_config=options)
        assert compiled_twice(backend, scale, torch.randn(6, device="npu")) == 0
    assert len(list(tmp_path.glob("dynamo_optimized_graph_*.txt"))) == 2


def test_streams_of_a_graph_are_not_kept():
    stream = torch.npu.Stream()

    def function(x):
        with torch.npu.stream(stream):
            return x + 1

    with torch.no_grad():
        assert compiled_twice(get_npu_backend(), function, torch.ones(4, device="npu")) == 0


def test_a_log_that_was_asked_for_is_written(capsys):
    x = torch.randn(6, device="npu")
    torch.compile(scale, backend=get_npu_backend())(x)
    torch._dynamo.reset()
    before = logger.level
    logger.setLevel(EVENT_LEVEL)
    try:
        torch.compile(scale, backend=get_npu_backend())(x)
    finally:
        logger.setLevel(before)
    assert hits() == 0 and "compiled graph_" in capsys.readouterr().out


def test_large_constants_are_not_kept(monkeypatch):
    def function(x):
        return x + torch.tensor([1.0, 2.0, 3.0], device="npu").sum()

    monkeypatch.setattr(_output_code, "_MAX_HELD", 8)
    assert compiled_twice(get_npu_backend(), function, torch.ones(2, device="npu")) == 0


def test_plain_cpu_programs_are_left_alone():
    """Nothing of ours is in the key of a program that runs on the CPU device."""
    x = torch.ones(4)
    torch.compile(scale)(x)
    torch._dynamo.reset()
    assert torch.compiler.config.cache_key_tag == ""
    torch.compile(scale)(x)
    assert hits() == 1
