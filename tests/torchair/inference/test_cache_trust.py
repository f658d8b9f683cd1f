"""cache_compile runs nobody else's code: whose files are believed, and for which function.

What a test plants writes a file when it is run, so that the test sees whether it was.
"""

from __future__ import annotations

import os
import pickle
import shutil
import stat
import subprocess
import sys

import pytest
import torch

from tests import PYTHONPATH
from tests.torchair.support import randn
from torchair.configs.compiler_config import CompilerConfig
from torchair.inference import _binding, _store, cache_compile

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")


def double(x):
    return x * 2 + 1


def triple(x):
    return x * 3 + 1


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The caches of two functions, compiled once for the whole file."""
    folder = tmp_path_factory.mktemp("made")
    for function in (double, triple):
        cache_compile(function, cache_dir=str(folder))(randn(4))
    return folder


@pytest.fixture
def folder(made, tmp_path):
    shutil.copytree(made, tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture
def planted(tmp_path):
    """A pickle that tells when it is loaded."""
    flag = tmp_path / "ran"

    class Bomb:
        def __reduce__(self):
            return os.system, (f"touch {flag}",)

    return flag, pickle.dumps(Bomb())


def path_of(function, folder):
    return cache_compile(function, cache_dir=str(folder)).path


def libraries(path):
    (found,) = path.parent.glob("host.*")
    return found


def refused(function, folder, match):
    """The function is built again, with a warning, and computes the right thing."""
    x = randn(5)
    cached = cache_compile(function, cache_dir=str(folder))
    with pytest.warns(UserWarning, match=match):
        result = cached(x)
    torch.testing.assert_close(result, function(x))
    return cached


def test_kept_and_believed(folder, monkeypatch):
    monkeypatch.setattr(torch, "compile", None)
    x = randn(7)
    torch.testing.assert_close(cache_compile(double, cache_dir=str(folder))(x), double(x))


def test_compiler_leaves_no_pickles(folder):
    assert not list(folder.rglob("fxgraph"))


def test_planted_pickle_is_not_loaded(folder, planted):
    """Compiled for real: Inductor looks for pickled graphs below the folder that it is given."""
    flag, bomb = planted
    path = path_of(double, folder)
    before = libraries(path)
    for name in ("host", "host.0", before.name):
        for place in ("fxgraph/aa/" + "a" * 52 + "/graph", "aotautograd/aa/entry"):
            file = path.parent / name / place
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(bomb)
    refused(double, folder, r"is not used, and built again: the file \S+ was added")
    assert not flag.exists()
    assert libraries_after(path) != before and not before.exists()


def libraries_after(path):
    return path.parent / _store.read(path)["host"]


def test_replaced_library_is_not_loaded(folder, planted, tmp_path):
    """The library of `triple` in the place of double's: it would load, and compute something else."""
    path = path_of(double, folder)
    library = next(libraries(path).rglob("*.so"))
    other = next(libraries(path_of(triple, folder)).rglob("*.so"))
    library.write_bytes(other.read_bytes())
    refused(double, folder, r"built again: the compiled file \S+\.so was changed")
    again = libraries_after(path)
    assert not library.exists() and other.read_bytes() not in [
        f.read_bytes() for f in again.rglob("*.so")
    ]


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("what", ["library", "folder of libraries", "record"])
def test_links_are_refused(folder, tmp_path, what):
    path = path_of(double, folder)
    host = libraries(path)
    link = {
        "library": next(host.rglob("*.so")),
        "folder of libraries": host,
        "record": path,
    }[what]
    moved = tmp_path / "moved"
    link.rename(moved)
    link.symlink_to(moved)
    match = {
        "library": "is neither a file nor a folder",
        "folder of libraries": "is a link",
        "record": "is a link",
    }
    refused(double, folder, f"built again: .*{match[what]}")
    assert moved.exists()


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_folder_that_others_may_write_to(folder, level, mode, monkeypatch):
    from softnpu import ownership

    monkeypatch.setattr(ownership, "_only_ours", lambda group: False)
    path = path_of(double, folder)
    wide = [folder, path.parent.parent, path.parent][level]
    wide.chmod(mode)
    kept = path.read_bytes()
    who = "everybody" if mode == 0o777 else "group 0"
    refused(double, folder, rf"is not used: {wide} may be written by {who} \(mode {mode:o}\)")
    assert path.read_bytes() == kept  # nothing is changed there either


def test_a_folder_of_many_is_left_alone(folder, monkeypatch):
    """Compiled for real, into a private folder that is gone at exit."""
    folder.chmod(0o777)
    before = sorted(folder.rglob("*"))
    seen = []
    private = _store.private_folder
    monkeypatch.setattr(_store, "private_folder", lambda: seen.append(private()) or seen[-1])
    refused(double, folder, "The function is built again in a private folder, and not kept")
    assert sorted(folder.rglob("*")) == before
    assert stat.S_IMODE(seen[-1].stat().st_mode) == 0o700
    assert list(seen[-1].rglob("*.so"))


def test_private_folder_is_gone_at_exit():
    program = "from torchair.inference import _store; print(_store.private_folder())"
    env = {**os.environ, "PYTHONPATH": PYTHONPATH}
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=env, check=True
    )
    assert "torchair_cache_" in run.stdout and not os.path.exists(run.stdout.strip())


@as_root
@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("what", ["cache", "function", "link"])
def test_folder_of_another_user(folder, tmp_path, what):
    path = path_of(double, folder)
    if what == "link":
        where = tmp_path / "theirs"
        where.symlink_to(folder)
    else:
        where = folder
    foreign = {"cache": folder, "function": path.parent, "link": where}[what]
    os.chown(foreign, 12345, 12345, follow_symlinks=False)
    refused(double, where, f"is not used: {foreign} belongs to user 12345, not to user 0 or root")


@as_root
@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("what", ["library", "record"])
def test_file_of_another_user(folder, what):
    path = path_of(double, folder)
    foreign = path if what == "record" else next(libraries(path).rglob("*.so"))
    os.chown(foreign, 12345, 12345)
    refused(double, folder, f"built again: {foreign} belongs to user 12345")


def test_own_links_and_sticky_folders_are_fine(folder, tmp_path, monkeypatch):
    (tmp_path / "mine").symlink_to(folder)
    monkeypatch.setattr(torch, "compile", None)
    x = randn(3)
    torch.testing.assert_close(
        cache_compile(double, cache_dir=str(tmp_path / "mine"))(x), double(x)
    )


@pytest.mark.usefixtures("uncompiled")
def test_files_of_another_function(folder):
    """They are sound, ours and complete, and would run."""
    mine, other = path_of(double, folder), path_of(triple, folder)
    shutil.rmtree(mine.parent)
    shutil.copytree(other.parent, mine.parent)
    refused(
        double,
        folder,
        rf"it was made for another function \({__name__}.triple, not {__name__}.double\)",
    )


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize(
    ("part", "match"),
    [
        ("cpu", "it was made by cpu other, not "),
        ("chip", "it was made by chip other, not Ascend910B3"),
        ("version", "it was made by version other"),
        ("code", "it was made for another code of the function"),
        ("values", "it was made for another model, or for other values"),
        ("options", "it was made for another set of options"),
    ],
)
def test_bound_to(folder, part, match):
    path = path_of(double, folder)
    record = _store.read(path)
    record["meta" if part in record["meta"] else "binding"][part] = "other"
    _store.write(path, record)
    refused(double, folder, f"built again: {match}")


# --- the binding -------------------------------------------------------------------------------------------


def scaled(by):
    def function(x):
        return x * by

    return function


FACTOR = 2


def helper(x):
    return x * FACTOR


def calls_helper(x, more=1):
    return helper(x) + more


class Settings:
    def __init__(self, scale):
        self.scale, self.unread = scale, object()


class Net(torch.nn.Module):
    def __init__(self, scale=1.0, note=""):
        super().__init__()
        self.settings, self.note, self.size = Settings(scale), note, 4

    def run(self, x):
        return x * self.settings.scale + self.size


def parts(function, **options):
    config = CompilerConfig()
    for name, value in options.items():
        setattr(config.experimental_config, name, value)
    return _binding.of(function, config, {})


def test_binding_is_the_same_for_the_same():
    assert parts(scaled(2)) == parts(scaled(2))
    assert parts(Net(2.0, "a").run) == parts(Net(2.0, "b").run)  # run does not read the note
    assert parts(calls_helper) == parts(calls_helper)


@pytest.mark.parametrize(
    ("other", "differs"),
    [
        (lambda: parts(scaled(3)), {"values"}),
        (lambda: parts(scaled(2.0)), {"values"}),
        (lambda: parts(scaled(2), remove_noop_ops=False), {"options"}),
        (lambda: parts(double), {"function", "code", "values"}),
    ],
)
def test_binding_of_a_closure(other, differs):
    mine, theirs = parts(scaled(2)), other()
    assert {name for name in mine if mine[name] != theirs[name]} == differs


def test_binding_sees_globals_and_functions_that_are_called(monkeypatch):
    before = parts(calls_helper)
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 3)
    assert parts(calls_helper)["values"] != before["values"]
    monkeypatch.undo()
    monkeypatch.setattr(sys.modules[__name__], "helper", lambda x: x)
    assert parts(calls_helper)["code"] != before["code"]
    monkeypatch.undo()
    monkeypatch.setattr(calls_helper, "__defaults__", (2,))
    assert parts(calls_helper)["values"] != before["values"]


def test_binding_sees_the_model():
    before = parts(Net(1.0).run)
    assert parts(Net(2.0).run)["values"] != before["values"]
    assert parts(Net(1.0).eval().run)["values"] != before["values"]
    deeper = Net(1.0)
    deeper.add_module("inner", torch.nn.Linear(2, 2))
    assert parts(deeper.run)["values"] != before["values"]


@pytest.mark.usefixtures("uncompiled")
def test_functions_of_one_factory_have_their_own_caches(tmp_path):
    assert path_of(scaled(2), tmp_path) != path_of(scaled(3), tmp_path)
    assert path_of(scaled(2), tmp_path) == path_of(scaled(2), tmp_path)
