"""`softnpu migrate-mocks`: which fakes are found, and what is said of each."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from softnpu import cli
from softnpu.cli import _mocks

CONFTEST = """
import sys, types
from unittest.mock import MagicMock, patch

sys.modules["torch_npu"] = MagicMock()
sys.modules["torch_npu._inductor_of_tomorrow"] = MagicMock()
sys.modules.setdefault("acl", MagicMock())
sys.modules["numpy_like"] = MagicMock()
fake = types.ModuleType("torch_npu")
fake.npu_swiglu = MagicMock()
fake.__spec__ = None
sys.modules["torch_npu"].npu_rms_norm = MagicMock()
torch.npu = MagicMock()
torch.npu.is_available = MagicMock(return_value=False)
torch.utils.rename_privateuse1_backend("npu")


@patch("torch_npu.npu_quant_matmul")
@patch.object(torch_npu, "npu_op_of_tomorrow")
def test(a, b, monkeypatch):
    monkeypatch.setattr(layers.torch_npu, "npu_format_cast", lambda w, f: w)
    monkeypatch.setattr("torch.npu.get_soc_version", lambda: 220)
    monkeypatch.setitem(sys.modules, "torch_npu.npu", MagicMock())
    with patch.dict("sys.modules", {"acl.rt": MagicMock(), "os": None}), patch("os.getcwd"):
        x = torch.npu.current_stream()
"""

FOUND = [
    (5, "module in sys.modules", "torch_npu", "delete: the import works"),
    (6, "module in sys.modules", "torch_npu._inductor_of_tomorrow", "keep: softnpu has no module"),
    (7, "module in sys.modules", "acl", "keep: softnpu has no acl"),
    (10, "attribute", "torch_npu.npu_swiglu", "delete"),
    (12, "attribute", "torch_npu.npu_rms_norm", "delete"),
    (13, "attribute", "torch.npu", "delete"),
    (14, "attribute", "torch.npu.is_available", "delete: it is True here"),
    (15, "rename of the backend", "torch.npu", "delete: importing torch_npu does it"),
    (18, "patch", "torch_npu.npu_quant_matmul", "delete, and assert on the result; to count calls keep it with wraps="),
    (19, "patch", "torch_npu.npu_op_of_tomorrow", "keep: softnpu has no torch_npu.npu_op_of_tomorrow"),
    (21, "patch", "torch_npu.npu_format_cast", "delete, and assert"),
    (22, "patch", "torch.npu.get_soc_version", "@pytest.mark.npu(soc="),
    (23, "module in sys.modules", "torch_npu.npu", "delete: the import works"),
    (24, "module in sys.modules", "acl.rt", "keep: softnpu has no acl"),
]  # fmt: skip


def invoke(*arguments: object, code: int = 0) -> str:
    done = CliRunner(env={"COLUMNS": "200"}).invoke(
        cli.main, ["migrate-mocks", *map(str, arguments)]
    )
    assert done.exit_code == code, (done.output, done.exception)
    return done.stdout


def test_each_fake_is_found_with_its_line_and_advice(tmp_path):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    found = json.loads(invoke(tmp_path, "--json"))
    assert [(f["line"], f["kind"], f["target"]) for f in found] == [entry[:3] for entry in FOUND]
    for entry, (*_, becomes) in zip(found, FOUND, strict=True):
        assert entry["becomes"].startswith(becomes), entry


def test_the_table_and_files_that_are_no_python(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "test_x.py").write_text('import sys\nsys.modules["torch_npu"] = None\n')
    (tmp_path / "a" / "broken.py").write_text("def (")
    said = invoke(tmp_path)
    assert "test_x.py:2" in said and "1 fakes in 1 files; 1 can be deleted" in said
    assert "no fakes" in invoke(tmp_path / "a" / "broken.py")


@pytest.mark.parametrize(
    "text",
    ["import torch_npu", "torch_npu.npu_swiglu(x)", "y = torch.npu.Stream()", "sys.modules['numpy'] = 1",
     "patch('torch_npux.f')", "oracle.x = 1"],
)  # fmt: skip
def test_what_is_no_fake(text):
    assert _mocks.find(text) == []
