"""Other versions of torch: what is refused, and which release of torch_npu the metadata state."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner

from softnpu import _C, settings, torch_versions
from softnpu.cli import main
from tests import ROOT

OWN = torch_versions.plain(torch.__version__)


@pytest.mark.parametrize("version", ["2.7.1+cu126", "2.8.0", "2.10.0+cu128", "2.13.0", "2.14.1"])
def test_supported(version):
    assert torch_versions.supported(version)


@pytest.mark.parametrize("version", ["1.13.1", "2.7.0", "2.6.0+cpu", "2.15.0", "3.0.0"])
def test_another_torch_is_refused_with_the_supported_ones(version):
    with pytest.raises(
        ImportError, match=r"supports torch 2\.7\.1 to 2\.14, but torch " + version.split("+")[0]
    ):
        torch_versions.check(SimpleNamespace(__version__=version))


def test_an_extension_of_another_torch_is_refused(monkeypatch):
    torch_versions.check(torch)
    monkeypatch.setattr(_C, "torch_version", "2.8.0")
    with pytest.raises(
        ImportError, match=rf"built with torch 2\.8\.0, but torch {re.escape(OWN)} is installed"
    ):
        torch_versions.check(torch)


def test_the_extension_knows_its_torch():
    assert torch_versions.plain(_C.torch_version) == OWN


def install(folder: Path, version: str) -> None:
    """Our description of torch_npu, as setup.py makes it, and softnpu's record of it."""
    info = folder / f"torch_npu-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: torch_npu\nVersion: {version}\nSummary: x\n"
    )
    own = folder / "softnpu-0.1.0.dist-info"
    own.mkdir()
    (own / "RECORD").write_text(f"{info.name}/METADATA,,\nsoftnpu/__init__.py,,\n")


@pytest.fixture
def installed(tmp_path, monkeypatch):
    install(tmp_path, "2.10.0+softnpu0.1.0")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


def test_a_release_is_stated_and_taken_back(installed):
    result = CliRunner().invoke(main, ["release", "2.10.0.post4"])
    assert result.output == f"torch_npu 2.10.0.post4+softnpu{torch_versions._own}, CANN 9.1.0\n", (
        result.output
    )
    assert importlib.metadata.version("torch-npu").startswith("2.10.0.post4+softnpu")
    assert torch_versions.release("2.10.0+cu128") == "2.10.0.post4"
    assert torch_versions.release("2.13.0") == "2.13.0"  # metadata of another torch
    assert settings.read({}).cann_version == "9.1.0"
    assert settings.read({"SOFTNPU_CANN_VERSION": "8.5.0"}).cann_version == "8.5.0"
    record = (installed / "softnpu-0.1.0.dist-info" / "RECORD").read_text()
    assert "torch_npu-2.10.0.post4+softnpu" in record and "torch_npu-2.10.0+" not in record
    CliRunner().invoke(main, ["release", "2.10.0"])
    assert importlib.metadata.version("torch_npu").startswith("2.10.0+softnpu")
    assert settings.read({}).cann_version == "9.0.0"


@pytest.mark.parametrize(
    ("release", "cann"),
    [
        ("2.7.1", "8.3.RC1"),
        ("2.7.1.post3", "8.5.0"),
        ("2.7.1.post9", "9.1.0"),
        ("2.10.0.post2", "9.0.0"),
        ("2.12.0", "9.1.0"),
        ("2.13.0", "9.0.0"),
    ],
)
def test_the_cann_of_a_release(release, cann):
    assert torch_versions.cann(release) == cann


@pytest.mark.parametrize("wrong", ["2.9.0.post1", "2.10.0post4", "2.10.0.post4+x", "latest"])
def test_a_wrong_release_is_refused(installed, wrong):
    result = CliRunner().invoke(main, ["release", wrong])
    assert result.exit_code == 1 and "expected 2.10.0 or a post-release" in result.output
    assert importlib.metadata.version("torch_npu") == "2.10.0+softnpu0.1.0"


@pytest.mark.parametrize(
    ("name", "annotated", "kind"),
    [
        ("aten::mm", False, "cpu_op"),
        ("[memory]", False, "cpu_instant_event"),
        ("my(3) part", True, "user_annotation"),
        ("train.py(3): <module>", False, "python_function"),
        ("nn.Module: Linear_0", False, "python_function"),
        ("<built-in method mm of type object at 0x7f00>", False, "python_function"),
    ],
)
def test_kinds_of_events_of_an_older_profiler(name, annotated, kind):
    event = SimpleNamespace(name=lambda: name, is_user_annotation=lambda: annotated)
    assert torch_versions.activity(event) == kind
    assert torch_versions.activity(SimpleNamespace(activity_type=lambda: "cpu_op")) == "cpu_op"


@pytest.mark.parametrize("python", [False, True])
def test_calls_of_an_older_profiler_are_in_its_tree(python):
    def node(name, tag, thread, *children):
        return SimpleNamespace(
            name=name, tag=SimpleNamespace(name=tag), start_tid=thread, children=list(children),
            start_time_ns=5, end_time_ns=9,
        )  # fmt: skip

    event = SimpleNamespace(
        name=lambda: "aten::mm", is_user_annotation=lambda: False,
        start_thread_id=lambda: 1, device_resource_id=lambda: 4711,
    )  # fmt: skip
    inner = node("nn.Module: Linear_0", "PyCall", 1, node("aten::mm", "TorchOp", 1))
    tree = [node("<built-in function linear>", "PyCCall", 2), inner]
    result = SimpleNamespace(events=lambda: [event], experimental_event_tree=lambda: tree)
    first, *calls = torch_versions.recorded(result, python)
    assert first is event
    found = {(e.name(), torch_versions.activity(e), e.device_resource_id()) for e in calls}
    of_python = {
        ("nn.Module: Linear_0", "python_function", 4711),
        ("<built-in function linear>", "python_function", 0),  # of a thread that nobody knows
    }
    assert found == (of_python if python else set())
    assert all((e.start_ns(), e.end_ns()) == (5, 9) for e in calls)


def test_nothing_else_compares_versions():
    """Versions of torch are compared in two files alone."""
    compares = re.compile(r"TORCH_VERSION_M|torch\.__version__\s*[<>=!]|torch_version\w*\s*[<>]")
    found = {
        str(path.relative_to(ROOT))
        for folder, endings in (("src", ("py",)), ("csrc", ("h", "cpp")))
        for ending in endings
        for path in (ROOT / folder).rglob(f"*.{ending}")
        if compares.search(path.read_text("utf-8"))
    }
    assert found <= {"src/softnpu/torch_versions.py", "csrc/torch/compat.h"}, found


def test_an_unsupported_torch_fails_at_import():
    code = "import torch; torch.__version__ = '2.6.0'; import torch_npu"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={
            "PYTHONPATH": f"{ROOT / 'src'}",
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
            "PATH": "/usr/bin:/bin",
        },
    )
    assert (
        done.returncode == 1 and "ImportError: softnpu supports torch 2.7.1 to 2.14" in done.stderr
    )


def test_kernels_that_inductor_has_loaded_are_forgotten(monkeypatch):
    """Before 2.12 it keeps them under the hash of their text, wherever their library is."""
    from torch._inductor import codecache

    kind = codecache.CppPythonBindingsCodeCache
    if hasattr(kind, "_loaded_module_names"):
        monkeypatch.delattr(kind, "_loaded_module_names")
        monkeypatch.setattr(torch._inductor.utils, "clear_inductor_caches", lambda: None)
    for name, key in (("csome.kernel", "csome"), ("others.kernel", None)):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(key=key))
    torch_versions.clear_inductor_caches()
    assert "csome.kernel" not in sys.modules and "others.kernel" in sys.modules
