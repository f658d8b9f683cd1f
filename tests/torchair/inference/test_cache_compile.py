"""torchair.inference.cache_compile and readable_cache: what is kept, when it is used, when it is not believed."""

from __future__ import annotations

import dataclasses
import os
import stat
import subprocess
import sys

import pytest
import torch

import torchair
from tests import PYTHONPATH
from tests.torchair.support import randn
from torchair.inference import _store, cache_compile, readable_cache


@dataclasses.dataclass
class Meta:
    data: torch.Tensor
    is_prompt: bool


class Model(torch.nn.Module):
    def __init__(self, folder, **options):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)
        torch.nn.init.ones_(self.linear.weight)
        self.norm = torch.nn.LayerNorm(3)  # its epsilon makes dynamo start again while it compiles
        self.cached = cache_compile(self.prompt, cache_dir=str(folder), **options)

    def forward(self, x, kv):
        return self.cached(x, kv)

    def prompt(self, x, kv):
        return self.norm(self.linear(x.data)) + kv[0] * (2.0 if x.is_prompt else 3.0)


def arguments(rows=6):
    return Meta(randn(rows, 4), True), [randn(rows, 3)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A cache that one model has filled: it is compiled once for the whole file."""
    folder = tmp_path_factory.mktemp("cache")
    model = Model(folder).npu()
    x, kv = arguments()
    torch.testing.assert_close(model(x, kv), model.prompt(x, kv))
    return folder


@pytest.fixture
def no_dynamo(monkeypatch):
    """A cached function must not trace."""

    def refuse(*args, **kwargs):
        raise AssertionError("dynamo was asked to trace")

    monkeypatch.setattr(torch, "compile", refuse)


@pytest.fixture
def copy(folder, tmp_path):
    """The same cache in a place of its own, to be damaged; the file and a model that looks there."""
    import shutil

    shutil.copytree(folder, tmp_path / "cache")
    model = Model(tmp_path / "cache").npu()
    return model.cached.path, model


def test_path(folder):
    path = Model(folder).npu().cached.path
    assert path.exists()
    model_info, function, name = path.relative_to(folder).parts
    assert model_info.startswith("Model_dynamic_") and (function, name) == (
        "prompt",
        "compiled_module",
    )


@pytest.mark.usefixtures("no_dynamo")
def test_second_model_starts_from_the_file(folder):
    model = Model(folder).npu()
    torch.nn.init.constant_(model.linear.weight, 3.0)  # weights are the model's, not the file's
    x, kv = arguments()
    torch.testing.assert_close(model(x, kv), model.prompt(x, kv))
    x, kv = arguments(9)
    torch.testing.assert_close(model(x, kv), model.prompt(x, kv))
    assert not model(x, kv).requires_grad


def test_another_process_starts_without_a_compiler(folder):
    """It imports neither dynamo nor Inductor, and computes the same."""
    program = f"""
import sys, warnings
import torch
warnings.simplefilter("error")
from tests.torchair.inference import test_cache_compile as cached
model = cached.Model({str(folder)!r}).npu()
x, kv = cached.arguments(5)
torch.testing.assert_close(model(x, kv), model.prompt(x, kv), atol=1e-5, rtol=1e-5)
print([name for name in ("torch._dynamo", "torch._inductor") if name in sys.modules])
"""
    run = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        check=False,
    )
    assert run.stdout.strip().splitlines()[-1:] == ["[]"], run.stdout + run.stderr


def test_files_are_the_owners_alone(folder):
    for path in folder.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


@pytest.mark.parametrize("damage", ["content", "magic", "empty", "mode", "library", "version"])
def test_what_is_not_believed_is_built_again(copy, damage, monkeypatch, uncompiled):
    path, model = copy
    everything = path.read_bytes()
    if damage == "content":
        path.write_bytes(everything[:-1] + bytes([everything[-1] ^ 1]))
    elif damage == "magic":
        path.write_bytes(b"something else")
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "mode":
        path.chmod(0o644)
    elif damage == "library":
        library = next(path.parent.glob("host.*/**/*.so"))
        library.write_bytes(library.read_bytes() + b"x")
    else:
        record = _store.read(path)
        record["meta"]["torch"] = "2.0.0"
        _store.write(path, record)
    reasons = {
        "content": "its content is damaged",
        "magic": "it is no cache of this version",
        "empty": "it is no cache of this version",
        "mode": "its mode must be 600",
        "library": "was changed",
        "version": "it was made by torch 2.0.0",
    }
    x, kv = arguments()
    with pytest.warns(UserWarning, match=f"is not used, and built again: .*{reasons[damage]}"):
        result = model(x, kv)
    torch.testing.assert_close(result, model.prompt(x, kv))


def test_pickles_with_classes_are_refused(copy):
    import hashlib
    import pickle

    path, _ = copy
    content = pickle.dumps({"meta": Meta(None, True)})
    digest = hashlib.sha256(content).hexdigest().encode()
    path.write_bytes(_store._MAGIC + digest + b"\n" + content)
    with pytest.raises(_store.BadCache, match="it names .*Meta, but holds plain values alone"):
        _store.read(path)


@pytest.mark.usefixtures("uncompiled")
def test_inputs_that_do_not_fit_build_it_again(copy):
    _, model = copy
    model(*arguments())
    x = Meta(randn(6, 4, dtype=torch.float64), True)
    model.to("npu", torch.float64)
    with pytest.warns(UserWarning, match="does not fit this call .*float64.*; it is built again"):
        result = model(x, [randn(6, 3, dtype=torch.float64)])
    torch.testing.assert_close(result, model.prompt(x, [randn(6, 3, dtype=torch.float64)]))


def test_keys_differ_by_code_structure_and_options(tmp_path):
    one = Model(tmp_path).npu()
    wider = Model(tmp_path).npu()
    wider.linear = torch.nn.Linear(5, 3)
    config = torchair.CompilerConfig()
    config.experimental_config.remove_noop_ops = False
    other = Model(tmp_path, config=config).npu()
    static = Model(tmp_path, dynamic=False).npu()
    decomposed = Model(tmp_path, custom_decompositions={torch.ops.aten.add.Tensor: lambda a, b: a})
    captured = torchair.CompilerConfig()
    captured.mode = "npugraph_ex"
    paths = [m.cached.path for m in (one, wider, other, static, decomposed)]
    paths.append(Model(tmp_path, config=captured).cached.path)
    paths.append(Model(tmp_path, ge_cache=True).cached.path)
    paths.append(Model(tmp_path, tp_rank=1, pp_rank=0).cached.path)
    assert len(set(paths)) == len(paths)
    assert "_aclgraphcache_" in str(paths[5]) and "_gecache_" in str(paths[6])
    assert paths[7].parts[-3] == "tp_rank1_pp_rank0"


def test_readable_cache(folder, tmp_path, capsys):
    path = Model(folder).npu().cached.path
    text = readable_cache(str(path), file=str(tmp_path / "prompt.py"))
    assert capsys.readouterr().out.strip() == text.strip()
    assert (tmp_path / "prompt.py").read_text() == text
    assert "# name: Model.prompt(x, kv)" in text and "LOAD_FAST" in text
    compile(text, "prompt.py", "exec")
    readable_cache(str(path), print_output=False)
    assert capsys.readouterr().out == ""
    with pytest.raises(FileNotFoundError, match="does not exist"):
        readable_cache(str(tmp_path / "none"))


class Drawing(torch.nn.Module):
    def __init__(self, folder):
        super().__init__()
        self.cached = cache_compile(self.run, cache_dir=str(folder))

    def run(self, x):
        return x + torch.rand_like(x)


@pytest.mark.usefixtures("uncompiled")
def test_random_graphs_are_not_cached(tmp_path):
    model = Drawing(tmp_path)
    with pytest.warns(UserWarning, match="is not cached"):
        model.cached(randn(4))
    assert not model.cached.path.exists()


def test_config_and_backend_must_agree(tmp_path):
    config = torchair.CompilerConfig()
    backend = torchair.get_npu_backend(compiler_config=config)
    Model(tmp_path, config=config, backend=backend)
    other = torchair.CompilerConfig()
    other.debug.run_eagerly = True
    with pytest.raises(ValueError, match="config .*run_eagerly.* and the backend's .* differ"):
        Model(tmp_path, config=other, backend=backend)
    with pytest.raises(TypeError, match="backend must come from torchair.get_npu_backend"):
        Model(tmp_path, backend="npu")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: cache_compile(torch.nn.Linear(2, 2)),
            TypeError,
            "func must be a method or function",
        ),
        (lambda: cache_compile(arguments, other=1), TypeError, r"unknown arguments \['other'\]"),
    ],
)
def test_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_ge_cache_belongs_to_max_autotune(tmp_path):
    config = torchair.CompilerConfig()
    config.mode = "reduce-overhead"
    with pytest.raises(ValueError, match="ge_cache needs mode max-autotune, not reduce-overhead"):
        Model(tmp_path, config=config, ge_cache=True)


def test_folder_of_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHAIR_CACHE_HOME", str(tmp_path / "home"))
    assert cache_compile(arguments).path.is_relative_to(tmp_path / "home")
    monkeypatch.delenv("TORCHAIR_CACHE_HOME")
    monkeypatch.chdir(tmp_path)
    assert cache_compile(arguments).path.is_relative_to(tmp_path / ".torchair_cache")
