"""Options, marks and the entry point of the pytest plugin: what needs no torch."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib

import pytest

from tests import PYTHONPATH, ROOT
from tests.kit.support import run

pytest_plugins = ["pytester"]


def test_no_torch_unless_used(pytester, monkeypatch):
    pytester.makepyfile(test_it="import sys\ndef test(): assert 'torch' not in sys.modules\n")
    run(pytester, monkeypatch).assert_outcomes(passed=1)


@pytest.mark.parametrize(
    "mark,message",
    [
        ("soc='Ascend1'", "is not a known chip"),
        ("chip='x'", "takes soc, devices, memory, strict and leak, but received 'chip'"),
        ("2", "but received 2 without a name"),
    ],
)
def test_wrong_marks(pytester, monkeypatch, mark, message):
    pytester.makepyfile(test_it=f"import pytest\n@pytest.mark.npu({mark})\ndef test(): pass\n")
    done = run(pytester, monkeypatch)
    assert done.ret == pytest.ExitCode.USAGE_ERROR and message in done.stderr.str()


@pytest.mark.parametrize(
    "option,message",
    [
        ("--npu-soc=Ascend1", "is not a known chip"),
        ("--npu-memory-limit=1", "must be a size from 2MiB"),
    ],
)
def test_wrong_options(pytester, monkeypatch, option, message):
    done = run(pytester, monkeypatch, option)
    assert done.ret == pytest.ExitCode.USAGE_ERROR and message in done.stderr.str()


def test_options_are_settings_of_the_process(pytester, monkeypatch):
    pytester.makepyfile(
        test_it="""
        import os, pytest
        @pytest.mark.npu(soc="Ascend910B4", memory="4GiB")
        def test():
            assert os.getppid() == int(os.environ["TESTED"]), "it fits, and runs here"
            assert os.environ["SOFTNPU_SOC"] == "Ascend910B4"
        """
    )
    done = run(pytester, monkeypatch, "--npu-soc=Ascend910B4", "--npu-memory-limit=4GiB")
    done.assert_outcomes(passed=1)


def test_sanitizer(pytester, monkeypatch):
    """Where this build has one, the setting is made; where not, that is said."""
    from softnpu import settings

    pytester.makepyfile(
        test_it="import os\ndef test(): assert os.environ['SOFTNPU_SANITIZE'] == '1'\n"
    )
    done = run(pytester, monkeypatch, "--npu-sanitize")
    if "SOFTNPU_SANITIZE" in settings._READERS:
        done.assert_outcomes(passed=1)
    else:
        assert done.ret == pytest.ExitCode.USAGE_ERROR
        assert "this build of softnpu has no sanitizer" in done.stderr.str()


def test_the_entry_point_leads_to_the_plugin():
    table = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    (module,) = table["project"]["entry-points"]["pytest11"].values()
    program = f"import sys, {module} as p; assert p.npu and 'torch' not in sys.modules"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([PYTHONPATH, os.environ.get("PYTHONPATH", "")]),
    }
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
