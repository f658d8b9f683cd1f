"""npu_max and its backward against a loop."""

import operator

from tests.ops.tensor.extremes import Extremes


class TestNpuMax(Extremes):
    name, better, tied = "npu_max", staticmethod(operator.gt), [1, 3, 3, 0]
