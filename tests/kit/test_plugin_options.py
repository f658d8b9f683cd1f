"""Options, marks and the entry point of the pytest plugin: what needs no torch."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from softnpu.python_versions import tomllib
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
    """A test that races fails, and says where; its neighbor does not."""
    pytester.makepyfile(
        test_it="""
        import pytest
        import torch

        def use(wait):
            x = torch.ones(64, device="npu")
            stream = torch.npu.Stream()
            if wait:
                stream.wait_stream(torch.npu.current_stream())
            with torch.npu.stream(stream):
                x * 2
            torch.npu.synchronize()

        def test_right(): use(True)
        def test_racy(): use(False)

        @pytest.mark.npu_races("to see that nothing is told")
        def test_racy_on_purpose(): use(False)
        """
    )
    done = run(pytester, monkeypatch, "--npu-sanitize")
    done.assert_outcomes(passed=2, failed=1)
    done.stdout.fnmatch_lines(["*race between streams*", "*missing: *wait_stream*"])


@pytest.mark.parametrize("mark", ["npu_races", "npu_races()", "npu_races(3)", "npu_races(why='x')"])
def test_a_race_on_purpose_needs_a_reason(pytester, monkeypatch, mark):
    pytester.makepyfile(test_it=f"import pytest\n\n@pytest.mark.{mark}\ndef test_it():\n    pass\n")
    done = run(pytester, monkeypatch)
    assert done.ret != 0
    done.stderr.fnmatch_lines(["*npu_races needs one argument, the reason as a text*"])


def test_the_entry_point_leads_to_the_plugin():
    table = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    (module,) = table["project"]["entry-points"]["pytest11"].values()
    program = f"import sys, {module} as p; assert p.npu and 'torch' not in sys.modules"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([PYTHONPATH, os.environ.get("PYTHONPATH", "")]),
    }
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)


def test_pytest_timeout_waits_in_a_daemon(pytester, monkeypatch):
    """An ordinary thread could record the event that another one waits for."""
    pytester.makepyfile(
        test_it="import threading, time\n"
        "def test_thread():\n"
        "    waiting = [t for t in threading.enumerate() if t.name.startswith('pytest_timeout')]\n"
        "    assert len(waiting) == 1 and waiting[0].daemon\n"
        "def test_long(): time.sleep(60)\n"
    )
    done = run(pytester, monkeypatch, "-x", "-o", "timeout=1", "-o", "timeout_method=thread")
    assert done.ret == 1 and "in test_long" in done.stdout.str()
