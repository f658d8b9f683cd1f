"""npu_min and its backward against a loop."""

import operator

from tests.ops.tensor.extremes import Extremes


class TestNpuMin(Extremes):
    name, better, tied = "npu_min", staticmethod(operator.lt), [1, 0, 0, 3]
