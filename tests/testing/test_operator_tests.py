"""What upstream's tests of operators import: tests by operator, times, sparse tensors, samples."""

import json

import torch

from torch_npu.testing import common_methods_invocations, common_utils, decorator
from torch_npu.testing.testcase import TestCase


class Info:
    """An entry of an operator database."""

    def __init__(self, name, dtypes, formats):
        self.name, self.dtypesIfNPU, self.formats = name, dtypes, formats

    def get_decorators(self, *place):
        self.asked = place
        return []


def test_tests_by_operator_dtype_and_format():
    seen = []
    infos = [Info("add", [torch.half, torch.float32], [2]), Info("sub", [torch.int32], [0, 3])]

    class Case:
        def test_it(self, dtype, npu_format, op):
            seen.append((op.name, dtype, npu_format))

        def test_variant_consistency_eager(self, dtype, npu_format, op):
            seen.append(("eager", dtype, npu_format))

    made = decorator.instantiate_ops_tests(infos)(Case)
    names = sorted(n for n in dir(made) if n.startswith("test_"))
    assert names == [
        "test_it_add_float16_2", "test_it_add_float32_2", "test_it_sub_int32_0", "test_it_sub_int32_3",
        "test_variant_consistency_eager_add_float32_2",
        "test_variant_consistency_eager_sub_int32_0", "test_variant_consistency_eager_sub_int32_3",
    ]  # fmt: skip
    made().test_it_sub_int32_3()
    assert seen == [("sub", torch.int32, 3)]


def test_times_are_kept_in_a_file(tmp_path):
    file = tmp_path / "times.json"
    times = common_utils.Baseline(str(file))
    assert times.get_baseline("a") is None
    times.set_baseline("a", 1.5)
    times.save_baseline()
    assert json.loads(file.read_text()) == {"a": 1.5}
    assert common_utils.Baseline(str(file)).get_baseline("a") == 1.5


def test_sparse_tensors():
    case = TestCase()
    x, indices, values = case.genSparseTensor([4, 5, 2], 2, 6, True)
    assert indices.shape == (2, 12) and values.shape == (12, 2) and not x.is_coalesced()
    assert torch.equal(case.safeToDense(x), x.to_dense())
    empty, _, _ = case.genSparseTensor([0, 5], 2, 0, False)
    assert case.safeCoalesce(empty)._nnz() == 0


def test_samples():
    info = type("Op", (), {"supports_multiple_dims": True})()
    found = list(
        common_methods_invocations.sample_inputs_median_custom(info, "cpu", torch.float32, False)
    )
    assert [tuple(s.input.shape) for s in found[:2]] == [(2, 0), (0, 2)] and len(found) > 2
    normal = common_methods_invocations.sample_inputs_normal_tensor_second(
        None, "cpu", torch.float32, False
    )
    assert [tuple(s.input.shape) for s in normal] == [(3, 4), (3, 55), (5, 6, 7, 8)]
