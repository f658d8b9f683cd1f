"""The pytest plugin, with pytest in processes of its own. They import torch, so each runs several tests."""

from __future__ import annotations

import re

import pytest

from tests import ROOT
from tests.kit.support import run

pytest_plugins = ["pytester"]

TESTS = """
import os, sys, unittest, warnings
import pytest

HERE = int(os.environ["TESTED"])


@pytest.fixture(scope="module")
def place():
    print("place is made")
    yield os.getpid()
    print("place is gone")


def test_runs_here():
    assert os.getppid() == HERE and "torch" not in sys.modules


@pytest.mark.npu(soc="Ascend310P3", devices=2)
def test_other_chip(place):
    import torch, torch_npu
    assert place == os.getpid() and os.getppid() != HERE
    assert torch.npu.get_device_name().startswith("Ascend310P3") and torch.npu.device_count() == 2


@pytest.mark.npu(soc="Ascend310P3")
@pytest.mark.npu(devices=2)
@pytest.mark.parametrize("n", [1, 2])
def test_parameters(n, place, tmp_path, record_property):
    print("n is", n)
    record_property("n", n)
    warnings.warn("take care")
    assert place == os.getpid(), "the fixture of the module is made once in its process"
    assert n == 1


@pytest.mark.npu(soc="Ascend310P3", devices=2)
def test_skipped():
    pytest.skip("not today")


@pytest.mark.npu(memory="64MiB", strict=False)
class TestUnit(unittest.TestCase):
    def setUp(self):
        import torch, torch_npu
        self.torch = torch

    def test_memory(self):
        with self.assertRaises(self.torch.OutOfMemoryError):
            self.torch.empty(100 * 2**20, dtype=self.torch.uint8, device="npu")

    def test_not_strict(self):
        import softnpu.settings
        self.assertFalse(softnpu.settings.strict())

    def test_wrong(self):
        self.assertEqual(1, 2)

    def test_dies(self):
        os.abort()
"""


@pytest.mark.parametrize("distributed", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_settings_by_mark(pytester, monkeypatch, distributed):
    if distributed:
        pytest.importorskip("xdist")
    text = TESTS.replace("os.getppid() == HERE and ", "") if distributed else TESTS
    pytester.makepyfile(test_it=text)
    done = run(pytester, monkeypatch, "--junitxml=result.xml", *distributed)
    done.assert_outcomes(passed=5, failed=3, skipped=1)
    assert done.parseoutcomes()["warnings"] >= 2  # the test's own; libraries may have others
    said = done.stdout.str()
    for line in (
        "FAILED test_it.py::test_parameters[[]2[]] - assert 2 == 1",
        "FAILED test_it.py::TestUnit::test_wrong - AssertionError: 1 != 2",
        "FAILED test_it.py::TestUnit::test_dies - the process of the test ended with*",
        "SKIPPED [[]1[]] test_it.py:*: not today",
        "*UserWarning: take care",
    ):
        done.stdout.fnmatch_lines([line])
    assert (
        ">       assert n == 1" in said
        and "n is 2" in said
        and "Fatal Python error: Aborted" in said
    )
    assert said.count("place is made") == 1 or distributed
    xml = (pytester.path / "result.xml").read_text("utf-8")
    assert '<property name="n" value="1"' in xml and "place is made" in said
    times = [float(t) for t in re.findall(r'testcase [^>]*time="([\d.]+)"', xml)]
    assert max(times) > 0


FIXTURES = """
import gc
import pytest, torch

kept = []


@pytest.fixture
def made(npu):
    return torch.ones(1000, device=npu)


def test_leaks(npu):
    kept.append(torch.ones(1000, device=npu))


@pytest.mark.npu(leak="1MiB")
def test_may_leak(npu):
    kept.append(torch.ones(1000, device=npu))


def test_keeps_nothing(npu, made):
    made.extra = torch.ones(1000, device=npu)
    assert torch.npu.max_memory_allocated() < 2**20


class TestObject:
    def test_of_a_class(self, npu):
        self.x = torch.ones(1000, device=npu)


def test_fails(npu):
    x = torch.ones(1000, device=npu)
    assert x.sum() == 0


@pytest.mark.parametrize("time", [1, 2])
def test_seeds(npu, time):
    drawn = torch.rand(3, device=npu).tolist()
    kept.append(drawn)
    assert time == 1 or kept[-1] == kept[-2]


def test_faults(npu, npu_faults):
    npu_faults.out_of_memory(nth=1)
    with pytest.raises(torch.OutOfMemoryError):
        torch.ones(3, device=npu)
    npu_faults.link_error()


def test_no_faults(npu):
    torch.ones(3, device=npu)


def test_profile(npu, npu_profile):
    with npu_profile() as profile:
        torch.ones(4, 4, device=npu) @ torch.ones(4, 4, device=npu)
    assert profile.count("MatMulV2") == 1 and profile.path.name.endswith("_ascend_pt")


def test_refused(npu):
    import torch_npu
    with pytest.raises(RuntimeError):
        torch_npu.npu_rms_norm(torch.ones(2, 8, device=npu), torch.ones(7, device=npu))


@pytest.mark.npu(soc="Ascend310P3")
def test_not_on_310p(npu):
    import torch_npu
    q = torch.ones(1, 16, 128, device=npu, dtype=torch.float16)
    with pytest.raises(RuntimeError):
        torch_npu.npu_fusion_attention(q, q, q, 1, "BSH")
"""


def test_fixtures_and_summary(pytester, monkeypatch):
    pytester.makepyfile(test_it=FIXTURES)
    done = run(pytester, monkeypatch, "--npu-summary", "--npu-memory-limit=1GiB")
    done.assert_outcomes(passed=11, failed=1, errors=1)
    done.stdout.fnmatch_lines(
        [
            "*the test leaves 4096 bytes of device memory in 1 blocks behind:",
            "*NPU summary (Ascend910B3, emulated)*",
            "operators used: *",
            "*aten::mm",
            "peak memory by test:",
            "constraints broken*: 2",
            "*npu_rms_norm: argument 'gamma'*",
            "operators that Ascend910B3 does not have: 1",
            "*npu_fusion_attention",
            "ERROR test_it.py::test_leaks - *",
            "FAILED test_it.py::test_fails - *",
        ]
    )
    assert "MiB test_it.py::test_not_on_310p" in done.stdout.str()


RANKS = """
import pytest, torch, torch.distributed as dist


@pytest.fixture
def base():
    return 10


@pytest.mark.parametrize("n", [2])
def test_sum(npu_ranks, base, n):
    @npu_ranks(n)
    def totals(rank):
        x = torch.full((2,), base + rank, device="npu")
        dist.all_reduce(x)
        return x.tolist(), dist.get_backend(), torch.npu.current_device()

    assert totals == [([21, 21], "hccl", 0), ([21, 21], "hccl", 1)]

    @npu_ranks(1)
    def again():
        return totals[1][0]

    assert again == [[21, 21]]


def test_one_rank_fails(npu_ranks):
    @npu_ranks(2)
    def body(rank):
        print("hello from", rank)
        assert rank == 0, "rank one is wrong"
        dist.all_reduce(torch.ones(2, device="npu"))
"""


@pytest.mark.slow
def test_ranks(pytester, monkeypatch):
    pytester.makepyfile(test_it=RANKS)
    done = run(pytester, monkeypatch, "--npu-summary")
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(
        [
            "2 of 2 ranks failed: 1, 0",
            "=== rank 1 ===",
            "*rank one is wrong*",
            "=== rank 0 ===",
            "*rank 1 *",
        ]
    )
    said = done.stdout.str()
    assert "hello from 0" in said and "hello from 1" in said and "all_reduce" in said


@pytest.mark.slow
def test_the_tests_on_the_page_pass(pytester, monkeypatch):
    from tests.test_docs import blocks

    for number, text in enumerate(blocks(ROOT / "docs" / "pytest.md")):
        (pytester.path / f"test_page{number}.py").write_text(text, "utf-8")
    run(pytester, monkeypatch).assert_outcomes(passed=4)
