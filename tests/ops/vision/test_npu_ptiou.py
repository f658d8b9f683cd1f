"""npu_ptiou against npu_iou before Ascend950, whose loops over pairs are in test_npu_iou.py."""

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.support import make
from tests.ops.vision._reference import boxes, iou


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("family", ["A2", "A5", "310P", "910A"])
def test_pairs(dtype, family):
    b, g = boxes(7).half(), boxes(5, seed=1).half()
    with on(family):
        result = torch_npu.npu_ptiou(b.to(dtype).npu(), g.to(dtype).npu())
    want = [[iou(p, q) for p in b.tolist()] for q in g.tolist()]
    assert result.dtype == dtype
    torch.testing.assert_close(
        result.cpu().double(), torch.tensor(want).double(), atol=3e-3, rtol=0
    )


def test_foreground():
    b = torch.tensor([[0.0, 0, 10, 20]]).npu()
    g = torch.tensor([[0.0, 0, 10, 10], [0, 0, 20, 20]]).npu()
    result = torch_npu.npu_ptiou(b, g, 1).cpu()
    torch.testing.assert_close(result, torch.tensor([[1.0], [0.5]]), atol=3e-3, rtol=0)


def test_bad_mode():
    with pytest.raises(RuntimeError, match="npu_ptiou: argument 'mode' must be 0 or 1.*-1"):
        torch_npu.npu_ptiou(make(2, 4), make(2, 4), -1)


def test_bad_dimensions():
    with pytest.raises(RuntimeError, match="argument 'bboxes' must be a tensor of 2 dimensions"):
        torch_npu.npu_ptiou(make(2, 3, 4), make(2, 4))
