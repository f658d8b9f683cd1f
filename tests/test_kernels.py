"""softnpu.kernels: references in Python for operators whose kernels exist only for the card."""

from __future__ import annotations

import importlib.util
import os
import py_compile
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

import torch_npu  # noqa: F401
from softnpu import kernels, settings


@pytest.fixture
def library():
    """A program's own library; its operators and our references go with the test."""
    made = torch.library.Library("_C_softnpu_test", "DEF")
    before = set(kernels.registered())
    yield made
    for name in set(kernels.registered()) - before:
        kernels.unregister(name)
    made._destroy()


def scaled(x, n):
    return x * n


def test_a_function_is_the_kernel_of_the_program_s_schema(library):
    library.define("scaled(Tensor x, int n) -> Tensor")
    assert kernels.register("_C_softnpu_test::scaled", scaled) is scaled
    result = torch.ops._C_softnpu_test.scaled(torch.ones(2, device="npu"), 3)
    assert result.tolist() == [3.0, 3.0] and result.device.type == "npu"
    assert kernels.registered()["_C_softnpu_test::scaled"].function is scaled


def test_as_decorator_and_before_the_program_defines_it(library):
    @kernels.register("_C_softnpu_test::later", meta=lambda x: torch.empty_like(x))
    def later(x):
        return x + 1

    library.define("later(Tensor x) -> Tensor")
    assert torch.ops._C_softnpu_test.later(torch.ones(2, device="npu")).tolist() == [2.0, 2.0]
    shape = torch.ops._C_softnpu_test.later(torch.ones(2, 5, device="meta"))
    assert shape.shape == (2, 5) and shape.device.type == "meta"


def test_an_operator_that_writes_its_arguments(library):
    library.define("fill_rows(Tensor(a!) cache, Tensor rows, *, float value=1.) -> ()")

    @kernels.register("_C_softnpu_test::fill_rows")
    def fill_rows(cache, rows, *, value=1.0):
        cache[rows] = value

    cache = torch.zeros(3, 2, device="npu")
    torch.ops._C_softnpu_test.fill_rows(cache, torch.tensor([0, 2], device="npu"), value=4.0)
    assert cache.tolist() == [[4.0, 4.0], [0.0, 0.0], [4.0, 4.0]]


def test_a_schema_defines_the_operator_and_unregister_takes_it_away():
    name = "_C_softnpu_absent::twice"
    kernels.register(name, lambda x: (x * 2, x.sum(-1)), schema="(Tensor x) -> (Tensor, Tensor)")
    try:
        double, total = torch.ops._C_softnpu_absent.twice(torch.ones(2, 3, device="npu"))
        assert double.tolist() == [[2.0] * 3] * 2 and total.tolist() == [3.0, 3.0]
    finally:
        assert kernels.unregister(name)
    assert not kernels.unregister(name)
    with pytest.raises(AttributeError):
        torch.ops._C_softnpu_absent_again.twice  # noqa: B018


def test_a_schema_of_an_operator_that_is_there_is_refused(library):
    library.define("there(Tensor x) -> Tensor")
    with pytest.raises(ValueError, match="is defined already, as _C_softnpu_test::there"):
        kernels.register("_C_softnpu_test::there.default", scaled, schema="(Tensor x) -> Tensor")


def test_an_operator_without_a_kernel_says_how_to_supply_one(library):
    library.define("nothing(Tensor x) -> Tensor")
    with pytest.raises(
        NotImplementedError,
        match="Could not run '_C_softnpu_test::nothing'.*softnpu.kernels.register",
    ):
        torch.ops._C_softnpu_test.nothing(torch.ones(2, device="npu"))


def test_the_function_gives_the_shapes_where_the_program_gives_none(library):
    from torch._subclasses.fake_tensor import FakeTensorMode

    library.define("pair(Tensor x) -> (Tensor, Tensor)")
    kernels.register("_C_softnpu_test::pair", lambda x: (x.sum(0), x.mT.contiguous()))
    with FakeTensorMode():
        first, second = torch.ops._C_softnpu_test.pair(torch.empty(2, 3, device="npu"))
    assert (first.shape, second.shape) == ((3,), (3, 2)) and first.device.type == "npu"


def test_the_program_s_own_shapes_stay(library):
    library.define("own(Tensor x) -> Tensor")
    library.impl("own", lambda x: x.new_empty(7), "Meta")
    kernels.register("_C_softnpu_test::own", lambda x: x + 1)
    assert torch.ops._C_softnpu_test.own(torch.empty(2, device="meta")).shape == (7,)
    kernels.register("_C_softnpu_test::own", lambda x: x + 1, meta=lambda x: x.new_empty(9))
    assert torch.ops._C_softnpu_test.own(torch.empty(2, device="meta")).shape == (9,)


def test_it_compiles_and_is_captured(library):
    library.define("affine(Tensor x, Tensor w) -> Tensor")
    kernels.register("_C_softnpu_test::affine", lambda x, w: x @ w + 1)
    x, w = torch.ones(2, 3, device="npu"), torch.ones(3, 2, device="npu")

    def function(x, w):
        return torch.ops._C_softnpu_test.affine(x, w) * 2

    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    assert compiled(x, w).tolist() == [[8.0, 8.0]] * 2
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        y = torch.ops._C_softnpu_test.affine(x, w)
    x.fill_(2)
    graph.replay()
    assert y.tolist() == [[7.0, 7.0]] * 2


def test_a_later_registration_replaces_an_earlier_one(library):
    library.define("which() -> int")
    library.define("versions(Tensor x) -> Tensor")
    kernels.register("_C_softnpu_test::versions", lambda x: x + 1)
    kernels.register("_C_softnpu_test::versions", lambda x: x + 2)
    assert torch.ops._C_softnpu_test.versions(torch.zeros(1, device="npu")).tolist() == [2.0]


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (("nothing", scaled), ValueError, "name must be \"library::operator\", received 'nothing'"),
        (("a::b::c", scaled), ValueError, "received 'a::b::c'"),
        ((3, scaled), TypeError, "name must be a str, received int"),
        (("a::b", 3), TypeError, "function must be callable, received int"),
        (("aten::add", scaled), ValueError, "the library 'aten' is not the program's own"),
        (("npu::npu_rms_norm", scaled), ValueError, "its kernels are torch_npu's"),
    ],
)
def test_what_cannot_be_registered(arguments, kind, message):
    with pytest.raises(kind, match=message):
        kernels.register(*arguments)
    with pytest.raises(TypeError, match="meta must be callable, received str"):
        kernels.register("a::b", scaled, meta="x")
    with pytest.raises(TypeError, match="schema must be a str, received int"):
        kernels.register("a::b", scaled, schema=3)


def run(program: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True, text=True, env=os.environ | environment,
    )  # fmt: skip


def test_files_of_the_folder_are_imported_with_torch_npu(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from softnpu import kernels\n"
        "kernels.register('_C_folder::add_one', lambda x: x + 1, schema='(Tensor x) -> Tensor')\n"
    )
    program = """
        import torch, torch_npu
        print(torch.ops._C_folder.add_one(torch.zeros(2, device="npu")).tolist())
    """
    done = run(program, SOFTNPU_KERNELS=str(tmp_path))
    assert done.stdout.strip() == "[1.0, 1.0]", done.stderr
    (tmp_path / "wrong.py").write_text("1 / 0")
    done = run("import torch_npu", SOFTNPU_KERNELS=str(tmp_path))
    assert done.returncode != 0 and "wrong.py of SOFTNPU_KERNELS failed: division" in done.stderr
    with pytest.raises(ValueError, match="SOFTNPU_KERNELS must be a directory that exists"):
        settings.read({"SOFTNPU_KERNELS": str(tmp_path / "none")})


def test_what_everybody_may_write_is_not_run(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("raise SystemExit('it ran')")
    for path, mode, back in ((tmp_path, 0o777, 0o700), (file, 0o666, 0o600)):
        path.chmod(mode)
        done = run("import torch_npu", SOFTNPU_KERNELS=str(tmp_path))
        path.chmod(back)
        assert "it ran" not in done.stderr and done.returncode != 0
        assert f"SOFTNPU_KERNELS: {path} may be written by everybody" in done.stderr


def test_bytecode_beside_the_files_is_not_run(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("raise SystemExit('planted')")
    cached = Path(importlib.util.cache_from_source(str(file)))
    py_compile.compile(
        str(file), cached, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
    )
    file.write_text("")
    assert cached.exists()
    done = run("import torch_npu", SOFTNPU_KERNELS=str(tmp_path))
    assert done.returncode == 0, done.stderr


def test_entry_points_are_loaded_with_torch_npu(tmp_path):
    about = tmp_path / "mykernels-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mykernels\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[softnpu.kernels]\nmine = mykernels:install\n")
    (tmp_path / "mykernels.py").write_text(
        "from softnpu import kernels\n"
        "def install():\n"
        "    kernels.register('_C_point::neg', lambda x: -x, schema='(Tensor x) -> Tensor')\n"
    )
    program = """
        import torch, torch_npu
        print(torch.ops._C_point.neg(torch.ones(2, device="npu")).tolist())
    """
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = run(program, PYTHONPATH=path)
    assert done.stdout.strip() == "[-1.0, -1.0]", done.stderr
    (tmp_path / "mykernels.py").write_text("")
    done = run("import torch_npu", PYTHONPATH=path)
    assert "the entry point mine = mykernels:install of softnpu.kernels failed" in done.stderr


@pytest.fixture
def shared_library():
    yield "libsoftnpu_test_only_for_the_card.so"
    kernels.unregister_library("libsoftnpu_test_only_for_the_card.so")


def test_a_library_that_does_not_exist_is_a_function(library, shared_library):
    calls = []

    def define():
        calls.append(1)
        library.define("loaded(Tensor x) -> Tensor")
        kernels.register("_C_softnpu_test::loaded", lambda x: x + 1)

    kernels.register_library(shared_library, define)
    assert kernels.registered_libraries()[shared_library] is define
    path = f"/nowhere/{shared_library}"
    torch.ops.load_library(path)
    torch.ops.load_library(Path("/elsewhere") / shared_library)
    assert calls == [1] and path in torch.ops.loaded_libraries
    assert torch.ops._C_softnpu_test.loaded(torch.ones(2, device="npu")).tolist() == [2.0, 2.0]
    assert kernels.unregister_library(shared_library)
    with pytest.raises(OSError, match="Could not load this library"):
        torch.ops.load_library(path)


def test_a_file_that_exists_is_loaded_itself(shared_library, tmp_path):
    kernels.register_library(shared_library, lambda: pytest.fail("the file was there"))
    (tmp_path / shared_library).write_text("not a library")
    with pytest.raises(OSError, match="Could not load this library"):
        torch.ops.load_library(str(tmp_path / shared_library))


def test_a_library_that_fails_is_tried_again(shared_library):
    results = iter([ValueError("not yet"), None])

    def define():
        error = next(results)
        if error:
            raise error

    kernels.register_library(shared_library, define)
    with pytest.raises(ValueError, match="not yet"):
        torch.ops.load_library(f"/nowhere/{shared_library}")
    torch.ops.load_library(f"/nowhere/{shared_library}")


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ((1, print), TypeError, "name must be a str, received int"),
        (("lib/x.so", print), ValueError, "name must be that of a file alone, received 'lib/x.so'"),
        (("", print), ValueError, "name must be that of a file alone"),
        (("x.so", 3), TypeError, "define must be callable, received int"),
    ],
)
def test_bad_libraries(arguments, error, message):
    with pytest.raises(error, match=message):
        kernels.register_library(*arguments)
