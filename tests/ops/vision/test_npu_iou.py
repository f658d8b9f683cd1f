"""npu_iou against loops over pairs."""

import pytest
import torch

import torch_npu
from tests.ops.families import as_chip, on
from tests.ops.support import assert_accurate, make
from tests.ops.vision._reference import boxes


def reference(b, g, mode, grown):
    """Areas with sides longer by 0.01; the shared part's too where `grown`."""
    out = torch.zeros(len(g), len(b), dtype=torch.float64)
    for j, q in enumerate(g.double().tolist()):
        for i, p in enumerate(b.double().tolist()):
            more = 0.01 if grown else 0.0
            w = max(0.0, min(p[2], q[2]) - max(p[0], q[0]) + more)
            h = max(0.0, min(p[3], q[3]) - max(p[1], q[1]) + more)
            own = (p[2] - p[0] + 0.01) * (p[3] - p[1] + 0.01)
            truth = (q[2] - q[0] + 0.01) * (q[3] - q[1] + 0.01)
            out[j, i] = w * h / (truth if mode == 1 else own + truth - w * h)
    return out


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("n,m", [(7, 5), (1, 1), (0, 3), (4, 0)])
def test_pairs_in_half_precision(dtype, mode, n, m):
    b, g = boxes(n).half(), boxes(m, seed=1).half()
    result = torch_npu.npu_iou(b.to(dtype).npu(), g.to(dtype).npu(), mode)
    want = reference(b, g, mode, grown=False)
    assert result.dtype == dtype and result.shape == (m, n)
    torch.testing.assert_close(result.cpu().double(), want, atol=1e-3, rtol=6e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("mode", [0, 1])
def test_pairs_on_ascend950(dtype, mode):
    b, g = boxes(6).to(dtype), boxes(5, seed=1).to(dtype)
    with on("A5"):
        result = torch_npu.npu_iou(b.npu(), g.npu(), mode)
    want = reference(b, g, mode, grown=True)
    assert result.dtype == dtype
    assert_accurate(result, want, want.to(dtype), slack=1e-5)


@pytest.mark.family("A2")
def test_same_touching_and_apart():
    b = torch.tensor([[0.0, 0, 10, 10], [10, 0, 20, 10], [40, 40, 50, 50]]).npu()
    result = torch_npu.npu_iou(b, b).cpu()
    assert torch.allclose(result, torch.eye(3), atol=5e-3)
    assert result[0, 1] == result[1, 0] == result[0, 2] == 0


def test_non_contiguous():
    b = boxes(6).t().contiguous().t().npu()
    assert torch.equal(torch_npu.npu_iou(b[::2], b), torch_npu.npu_iou(b[::2].contiguous(), b))


def test_bad_shape():
    with pytest.raises(
        RuntimeError, match=r"argument 'gtboxes' must be of shape \(\*, 4\).*\(3, 5\)"
    ):
        torch_npu.npu_iou(make(3, 4), make(3, 5))


def test_bad_mode():
    with pytest.raises(RuntimeError, match="argument 'mode' must be 0 or 1.*2"):
        torch_npu.npu_iou(make(3, 4), make(3, 4), 2)


def test_bad_dtype():
    with pytest.raises(RuntimeError, match="argument 'bboxes' must be of dtype .*int32"):
        torch_npu.npu_iou(make(3, 4, dtype=torch.int32, high=9), make(3, 4))


def test_ascend950_takes_one_dtype():
    with (
        as_chip("Ascend950"),
        pytest.raises(RuntimeError, match="'gtboxes' must be of the dtype of 'bboxes'"),
    ):
        torch_npu.npu_iou(make(2, 4), make(2, 4).half())
