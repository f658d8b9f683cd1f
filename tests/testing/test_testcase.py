"""torch_npu.testing, used as other projects' tests use it."""

import unittest

import numpy as np
import pytest
import torch

from torch_npu.testing import testcase
from torch_npu.testing.common_distributed import (
    TEST_SKIPS,
    init_pg,
    skipIfUnsupportMultiNPU,
    with_comms,
)
from torch_npu.testing.common_utils import (
    SkipIfNoLapack,
    SkipIfNotGteCANNVersion,
    SupportedDevices,
    create_common_tensor,
    create_dtype_tensor,
    freeze_rng_state,
    get_cycles_per_ms,
    get_npu_device,
)
from torch_npu.testing.common_utils import (
    test_2args_broadcast as broadcast,
)
from torch_npu.testing.decorator import Dtypes, Formats, instantiate_tests
from torch_npu.testing.testcase import TestCase, run_tests


def run(case):
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    return result


@pytest.fixture
def check():
    class Case(TestCase):
        def runTest(self):
            pass

    Case.setUpClass()
    return Case()


def test_a_project_test_runs():
    class TestRelu(TestCase):
        def test_relu(self):
            on_host, on_device = create_common_tensor([np.float32, -1, (4, 5)], -10, 10)
            self.assertRtolEqual(torch.relu(on_host), torch.relu(on_device).cpu())
            self.assertEqual(self.npu_device, "npu:0")

        def test_wrong(self):
            self.assertRtolEqual(torch.ones(2), torch.ones(2) * 1.1)

        @SupportedDevices(["Ascend910A"])
        def test_other_chip(self):
            self.fail("must be skipped")

        @SupportedDevices(["Ascend910A", "Ascend910B"])
        def test_this_chip(self):
            self.ran = True

    result = run(TestRelu)
    assert result.testsRun == 4 and not result.errors
    assert [t.id().split(".")[-1] for t, _ in result.failures] == ["test_wrong"]
    assert "Only run on ['Ascend910A'], current device is Ascend910B" in result.skipped[0][1]


def test_instantiated_tests_cover_every_combination():
    seen = []

    @instantiate_tests
    class TestMany(TestCase):
        @Dtypes(torch.half, torch.float)
        @Formats(0, 2)
        def test_it(self, device, dtype, npu_format):
            seen.append((device, dtype, npu_format))

    assert run(TestMany).testsRun == 4
    assert set(seen) == {("npu", d, f) for d in (torch.half, torch.float) for f in (0, 2)}
    assert hasattr(TestMany, "test_it_float16_0") and not hasattr(TestMany, "test_it")


def test_decorators_refuse():
    with pytest.raises(RuntimeError, match="No dtypes given"):
        Dtypes()
    with pytest.raises(RuntimeError, match="Unknown dtype"):
        Dtypes("half")
    with pytest.raises(RuntimeError, match="No formats given"):
        Formats()
    with pytest.raises(RuntimeError, match="Multiple matches for dtype"):

        @instantiate_tests
        class TestTwo(TestCase):
            @Dtypes(torch.half)
            def test_it(self, dtype, other_dtype):
                pass

    with pytest.raises(RuntimeError, match="has no argument for format"):

        @instantiate_tests
        class TestNone(TestCase):
            @Formats(2)
            def test_it(self):
                pass


def test_relative_equality(check):
    check.assertRtolEqual(torch.ones(3), torch.ones(3) * 1.00001)
    check.assertRtolEqual(np.float32(1), np.float32(1))
    check.assertRtolEqual([torch.ones(2), 3], [torch.ones(2), 3])
    check.assertRtolEqual(torch.tensor([float("nan"), 1]), torch.tensor([float("nan"), 1]))
    check.assertRtolEqual(torch.tensor([float("inf")]), torch.tensor([float("inf")]))
    check.assertRtolEqual(torch.ones(2).bfloat16(), torch.ones(2).bfloat16().npu())
    check.assertRtolEqual(torch.ones(2), torch.ones(2).half(), auto_trans_dtype=True)
    check.assertRtolEqual(torch.ones(2).half(), torch.ones(2).half() * 1.0005)
    wrong = [
        (torch.ones(2), torch.ones(3), "shape error"),
        (torch.ones(2), torch.ones(2).half(), "dtype error"),
        (torch.ones(2), torch.tensor([1, 2.0]), "result error"),
        (torch.ones(2).bool(), torch.tensor([True, False]), "result error"),
        (torch.ones(2).bfloat16(), torch.ones(2).bfloat16() * 2, "result error"),
        (torch.tensor([float("nan")]), torch.ones(1), "NaN in other places"),
    ]
    for x, y, message in wrong:
        with pytest.raises(AssertionError, match=message):
            check.assertRtolEqual(x, y)


def test_absolute_equality(check):
    check.assertEqual(torch.ones(2).npu(), torch.ones(2))
    check.assertEqual({"a": [1, torch.ones(1)]}, {"a": [1, torch.ones(1)]})
    check.assertEqual(1.0, 1.0 + 1e-7)
    check.assertEqual("a", "a")
    check.assertEqual(torch.tensor([float("inf")]), torch.tensor([float("inf")]), allow_inf=True)
    check.assertEqual(torch.tensor(3.0), 3)
    check.assertAlmostEqual(1.0, 1.001, places=2)
    check.assertNotEqual(torch.ones(2), torch.zeros(2))
    check.assertNotEqual(1, 2)
    check.assertTensorsSlowEqual(torch.ones(2, 2), torch.ones(2, 2), 1e-6)
    flags = torch.tensor([True, False])
    check.assertTensorsSlowEqual(flags, flags.npu())
    for call in (
        lambda: check.assertEqual(torch.ones(2), torch.ones(3)),
        lambda: check.assertEqual(torch.ones(2), torch.zeros(2)),
        lambda: check.assertTensorsSlowEqual(torch.tensor([True]), torch.tensor([False])),
        lambda: check.assertEqual(1.0, 1.1),
        lambda: check.assertEqual({"a": 1}, {"b": 1}),
        lambda: check.assertEqual([1], [1, 2]),
        lambda: check.assertEqual(float("inf"), float("inf")),
        lambda: check.assertEqual(torch.ones(1).half(), torch.ones(1), exact_dtype=True),
        lambda: check.assertNotEqual(torch.ones(2), torch.ones(2)),
        lambda: check.assertObjectIn([], [[]]),
        lambda: check.assertNotWarn(lambda: __import__("warnings").warn("w", stacklevel=1)),
        lambda: check.assertWarns(lambda: None),
    ):
        with pytest.raises(AssertionError):
            call()


def test_inputs():
    on_host, on_device = create_dtype_tensor((3, 4), torch.int32, no_zero=True)
    assert torch.equal(on_host, on_device.cpu()) and (on_host != 0).all()
    for dtype in (torch.half, torch.float, torch.bool):
        on_host, on_device = create_dtype_tensor((2, 2), dtype)
        assert on_host.dtype == on_device.dtype == dtype and on_device.device.type == "npu"
    for on_host, on_device in broadcast(torch.add):
        assert np.array_equal(on_host, on_device)
    state = torch.get_rng_state()
    with freeze_rng_state():
        torch.rand(3)
    assert torch.equal(torch.get_rng_state(), state)
    assert get_cycles_per_ms() > 0


def test_chosen_device(monkeypatch):
    monkeypatch.setenv("SET_NPU_DEVICE", "2")
    assert get_npu_device() == "npu:2"
    _, on_device = create_common_tensor([np.float16, -1, (2,)], 0, 1)
    assert on_device.device.index == 2


def test_skips():
    class TestSkips(TestCase):
        @SkipIfNotGteCANNVersion("99.0.0")
        def test_cann(self):
            self.fail()

        @SkipIfNotGteCANNVersion("8.0.0")
        def test_old_cann(self):
            pass

        @skipIfUnsupportMultiNPU(9)
        def test_nine(self):
            self.fail()

        @skipIfUnsupportMultiNPU(8)
        def test_eight(self):
            pass

        @SkipIfNoLapack()
        def test_lapack(self):
            torch.linalg.inv(torch.eye(2))

    result = run(TestSkips)
    assert result.wasSuccessful() and len(result.skipped) == 2


def test_process_groups(tmp_path):
    with pytest.raises(RuntimeError, match="Backend nccl not supported"):
        init_pg("nccl")
    with pytest.raises(RuntimeError, match="Test function is None"):
        with_comms(None)
    assert TEST_SKIPS["multi-npu-4"].message == "Need at least 4 ASCEND devices"
    init_pg("gloo", 1, 0, str(tmp_path / "store"))
    assert torch.distributed.get_world_size() == 1
    torch.distributed.destroy_process_group()
    assert callable(run_tests)


def test_common_tensors_ignore_what_follows_the_shape():
    host, device = create_common_tensor([np.float32, 2, (3, 4), "more"], -1, 1)
    assert host.shape == (3, 4) and device.device.type == "npu"


def test_half_precision_is_compared_with_numpys_rounding():
    generator = np.random.default_rng(0)
    a = (generator.standard_normal(5000) * 10.0 ** generator.integers(-7, 5, 5000)).astype(
        np.float16
    )
    b = (a * generator.choice([1, 1.0004, 1.001, 1.01], 5000).astype(np.float32)).astype(np.float16)
    a[:4], b[:4] = [np.nan, np.inf, 0, 65504], [np.nan, np.inf, 0, -65504]
    nan, _, error, within = testcase._halves_within(a, b, 1e-3)
    with np.errstate(invalid="ignore", over="ignore"):
        expected = np.where(np.isnan(a) | (a == b), np.float16(0), np.abs(b - a))
        scale = np.where(
            np.isnan(a), np.float16(1), np.maximum(np.abs(a), np.abs(b)) + np.float16(6e-8)
        )
        relative = expected / scale <= np.float16(1e-3)
    assert np.array_equal(nan, np.isnan(a)) and np.array_equal(error, expected)
    assert np.array_equal(within[0], expected <= np.float16(1e-3))
    assert np.array_equal(within[1], relative) and 0 < relative.sum() < relative.size
