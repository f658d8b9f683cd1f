"""Names beside operators that programs import from torch_npu."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import warnings

import pytest
import torch
from torch.multiprocessing import reductions as torch_reductions

import torch_npu
import torch_npu._inductor
from softnpu import cann, settings
from torch_npu.multiprocessing import reductions
from torch_npu.utils import collect_env


def test_unsupported_dtypes_are_the_quantized_ones():
    assert set(torch_npu.unsupported_dtype) == {
        torch.quint8, torch.quint4x2, torch.quint2x4, torch.qint32, torch.qint8,
    }  # fmt: skip
    assert torch.float32 not in torch_npu.unsupported_dtype


def test_the_handle_of_a_task_group_has_upstream_s_name():
    graph, stream = torch.npu.NPUGraph(), torch.npu.Stream()
    x = torch.ones(2, device="npu")
    with torch.npu.stream(stream):
        graph.capture_begin()
        torch.npu.graph_task_group_begin(stream)
        x.add_(1)
        handle = torch.npu.graph_task_group_end(stream)
        graph.capture_end()
    assert isinstance(handle, torch_npu._C._NPUTaskGroupHandle)


def test_the_version_of_cann_stands_beside_cuda_s():
    assert torch.version.cann == settings.current().cann_version


def test_inductor_s_switches_know_the_cores():
    assert torch_npu._inductor.config.num_vector_core == 40
    with pytest.raises(AttributeError, match="nothing"):
        _ = torch_npu._inductor.config.nothing


# --- tensors by handle --------------------------------------------------------------------------------------------

RECEIVER = """
import pickle, sys, torch, torch_npu
from torch_npu.multiprocessing.reductions import rebuild_npu_tensor
args = list(pickle.loads(bytes.fromhex(sys.argv[1])))
args[6] = 1
tensor = rebuild_npu_tensor(*args)
print(tensor.device, tensor.tolist(), type(tensor).__name__)
tensor.detach().add_(10)
"""


@pytest.mark.parametrize("kind", ["tensor", "view", "parameter"])
def test_another_process_sees_the_bytes_of_a_handle(kind):
    import pickle

    x = torch.arange(4.0, device="npu")
    given = {"tensor": x, "view": x[1:3], "parameter": torch.nn.Parameter(x)}[kind]
    function, args = torch_reductions.reduce_tensor(given)
    assert function is reductions.rebuild_npu_tensor
    sent = pickle.dumps(args).hex()
    out = subprocess.run(
        [sys.executable, "-c", RECEIVER, sent], capture_output=True, text=True, check=True
    ).stdout
    values = [1.0, 2.0] if kind == "view" else [0.0, 1.0, 2.0, 3.0]
    assert out.strip() == f"npu:1 {values} {'Parameter' if kind == 'parameter' else 'Tensor'}"
    assert given.tolist() == [value + 10 for value in values]


def test_what_has_no_bytes_and_what_is_not_on_npu():
    function, args = torch_reductions.reduce_tensor(torch.empty(0, 3, device="npu"))
    assert function(*args).shape == (0, 3)
    function, _ = torch_reductions.reduce_tensor(torch.ones(2))
    assert function is torch_reductions.rebuild_tensor


def test_handles_that_are_none():
    x = torch.ones(2, device="npu")
    _, args = torch_reductions.reduce_tensor(x)

    def rebuild(handle, offset=0):
        changed = list(args)
        changed[7], changed[9] = handle, offset
        return reductions.rebuild_npu_tensor(*changed)

    with pytest.raises(ValueError, match="is no handle of a shared npu storage"):
        rebuild(b"nothing")
    with pytest.raises(RuntimeError, match="must hold the tensor"):
        rebuild(b"1:99999")
    with pytest.raises(ValueError, match="storage_offset_bytes must be 0, received 4"):
        rebuild(args[7], 4)
    with pytest.raises(RuntimeError, match="Cowardly refusing"):
        torch_reductions.reduce_tensor(x.requires_grad_() * 2)


# --- the environment ------------------------------------------------------------------------------------------------


def test_the_report_of_the_environment():
    made = collect_env.SystemEnv(*[f"<{name}>" for name in collect_env.SystemEnv._fields])._replace(
        gcc_version=None, is_xnnpack_available=True, pip_packages="", pip_version="pip3"
    )
    text = collect_env.pretty_str(made)
    assert "GCC version: Could not collect" in text and "Is XNNPACK available: Yes" in text
    assert "[pip3] No relevant packages" in text and "<cann_version> (emulated" in text
    assert collect_env.get_cann_version() == settings.current().cann_version
    assert collect_env.get_torch_npu_version() == torch_npu.__version__


def test_paths_are_checked(tmp_path):
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    collect_env.check_directory_path_readable(str(tmp_path))
    with pytest.raises(RuntimeError, match="is a symbolic link"):
        collect_env.check_directory_path_readable(str(link))
    with pytest.raises(RuntimeError, match="does not exist"):
        collect_env.check_directory_path_readable(str(tmp_path / "none"))
    with pytest.warns(FutureWarning), pytest.raises(RuntimeError, match="does not exist"):
        collect_env.check_path_owner_consistent(str(tmp_path / "none"))


def test_cann_s_variables_lead_to_a_directory_that_programs_can_read():
    found: dict[str, str] = {}
    cann.export(found)
    top = found["ASCEND_HOME_PATH"]
    assert found == {
        "ASCEND_HOME_PATH": top, "ASCEND_TOOLKIT_HOME": top, "ASCEND_OPP_PATH": f"{top}/opp",
    }  # fmt: skip
    assert os.path.isdir(f"{top}/opp/vendors") and os.path.isfile(f"{top}/include/acl/acl.h")
    for name in ("ascendcl", "opapi", "nnopbase"):  # what build files link with
        assert os.path.isfile(f"{top}/lib64/lib{name}.so")
    versions = []  # as DeepSpeed and older torch_npu look for it
    for folder, _, files in os.walk(top):
        for name in files:
            if re.match(r"ascend_.*_install\.info", name):
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    versions += [line.strip().split("=")[-1] for line in file if "version=" in line]
    assert versions[0] == settings.current().cann_version


def test_cann_s_variables_of_the_program_stay():
    found = {"ASCEND_HOME_PATH": "/opt/cann"}
    cann.export(found)
    assert found == {
        "ASCEND_HOME_PATH": "/opt/cann", "ASCEND_TOOLKIT_HOME": "/opt/cann",
        "ASCEND_OPP_PATH": "/opt/cann/opp",
    }  # fmt: skip
    for off in ({"cann_home": "0"}, {"enabled": False}):
        with settings.override(**off):
            nothing: dict[str, str] = {}
            cann.export(nothing)
            assert not nothing
    with settings.override(cann_home="/somewhere"):
        cann.export(nothing)
    assert nothing["ASCEND_HOME_PATH"] == "/somewhere"


def test_another_version_has_its_own_directory():
    with settings.override(cann_version="8.5.0"):
        top = cann.home()
        assert (top / "compiler" / "version.info").read_text("utf-8").startswith("Version=8.5.0")
    assert cann.home() != top and cann.home() == cann.home()
    with pytest.raises(ValueError, match="SOFTNPU_CANN_HOME must be a directory that exists"):
        settings.read({"SOFTNPU_CANN_HOME": "/nowhere/at/all"})


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Another folder of temporary files; what cann.py remembers of the real one is forgotten."""
    folder = tmp_path / "temporary"
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    cann._parent.cache_clear()
    yield folder
    cann._parent.cache_clear()


def planted(folder):
    """What somebody else has put where the directory would be made: all of its files, and one that must not be used."""
    top = folder / f"softnpu-{os.geteuid()}" / f"cann-{settings.current().cann_version}"
    for name in (*cann._files(settings.current().cann_version, top), "include/x"):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text("planted")
    (top / "lib64").mkdir(exist_ok=True)
    for name in cann._LIBRARIES:
        (top / "lib64" / name).write_text("planted")
    return top


def test_the_directory_is_the_user_s_own(temporary):
    top = cann.home()
    assert top.parent == temporary / f"softnpu-{os.geteuid()}" and cann.home() == top
    assert stat.S_IMODE(top.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("how", ["of another user", "open to all"])
def test_a_directory_that_others_have_made_is_not_used(temporary, how):
    """Its libraries would be linked, and its set_env.sh be run."""
    top = planted(temporary)
    if how == "open to all":
        top.parent.chmod(0o777)
    elif os.geteuid() == 0:
        os.chown(top.parent, 12345, 12345)
    else:
        pytest.skip("only root gives files away")
    with pytest.warns(UserWarning, match=f"softnpu: {top.parent} (belongs to|may be written by)"):
        made = cann.home()
    assert made.parent != top.parent and made.parent.name.startswith("softnpu-cann-")
    assert "planted" not in (made / "set_env.sh").read_text("utf-8")
    assert (made / "lib64" / "libopapi.so").resolve().parts[-3:] == (
        "torch_npu",
        "lib",
        "libopapi.so",
    )
    assert (top / "set_env.sh").read_text("utf-8") == "planted"  # nothing of theirs is touched
    shutil.rmtree(made.parent)


def test_nothing_is_printed_by_these_names():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch_npu.multiprocessing.reductions is reductions
