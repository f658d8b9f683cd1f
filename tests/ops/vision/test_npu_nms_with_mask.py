"""npu_nms_with_mask against a plain loop."""

import pytest
import torch

import torch_npu
from tests.ops.families import as_chip, on
from tests.ops.support import make
from tests.ops.vision._reference import boxes, nms


def scored(n, seed=0, columns=5):
    source = torch.Generator().manual_seed(seed)
    return torch.cat([boxes(n, seed), torch.rand(n, columns - 4, generator=source)], 1)


def kept(mask):
    return mask.cpu().nonzero()[:, 0].tolist()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("threshold", [0.0, 0.2, 0.6, 1.0])
@pytest.mark.parametrize("columns", [5, 8])
def test_plain_loop(dtype, threshold, columns):
    rows = scored(150, columns=columns).to(dtype)
    out, index, mask = torch_npu.npu_nms_with_mask(rows.npu(), threshold)
    want = nms(rows[:, :4].float().tolist(), rows[:, 4].tolist(), threshold)
    assert kept(mask) == sorted(want)
    assert torch.equal(out.cpu(), rows[:, :5]) and out.is_contiguous()
    assert index.tolist() == list(range(150))
    assert (out.dtype, index.dtype, mask.dtype) == (dtype, torch.int32, torch.uint8)


def test_sorted_boxes():
    rows = scored(600)
    rows = rows[rows[:, 4].argsort(descending=True)]
    _, _, mask = torch_npu.npu_nms_with_mask(rows.npu(), 0.3)
    assert kept(mask) == nms(rows[:, :4].tolist(), rows[:, 4].tolist(), 0.3)


def test_ties_by_lower_index():
    rows = scored(1).repeat(4, 1)
    rows[2, :4] += 500
    assert kept(torch_npu.npu_nms_with_mask(rows.npu(), 0.5)[2]) == [0, 2]


@pytest.mark.family("A2")
def test_bfloat16_on_ascend950():
    rows = scored(40).bfloat16()
    with on("A5"):
        out, _, mask = torch_npu.npu_nms_with_mask(rows.npu(), 0.2)
    assert out.dtype == torch.bfloat16
    assert kept(mask) == sorted(nms(rows[:, :4].float().tolist(), rows[:, 4].tolist(), 0.2))
    with pytest.raises(RuntimeError, match="argument 'input' must be of dtype .*bfloat16"):
        torch_npu.npu_nms_with_mask(rows.npu(), 0.2)


def test_empty_and_single():
    assert torch_npu.npu_nms_with_mask(make(0, 5), 0.5)[0].shape == (0, 5)
    assert torch_npu.npu_nms_with_mask(make(1, 5), 0.5)[2].tolist() == [1]


def test_non_contiguous():
    rows = scored(30).npu()
    turned = rows.t().contiguous().t()
    for a, b in zip(
        torch_npu.npu_nms_with_mask(turned, 0.1),
        torch_npu.npu_nms_with_mask(rows, 0.1),
        strict=True,
    ):
        assert torch.equal(a, b)


def test_bad_width():
    with pytest.raises(
        RuntimeError, match=r"'input' must be of shape \(n, 5\) or \(n, 8\).*\(3, 6\)"
    ):
        torch_npu.npu_nms_with_mask(make(3, 6), 0.5)


def test_bad_threshold():
    with pytest.raises(RuntimeError, match=r"argument 'iou_threshold' must be in \[0, 1\].*-0.5"):
        torch_npu.npu_nms_with_mask(make(3, 5), -0.5)


def test_too_many_boxes():
    with pytest.raises(
        RuntimeError, match="argument 'input' must be of at most 39936 boxes.*39937"
    ):
        torch_npu.npu_nms_with_mask(torch.zeros(39937, 5).npu(), 0.5)


def test_ascend950_takes_less():
    with as_chip("Ascend950"):
        for shape, message in (((3, 8), r"of shape \(\*, 5\)"), ((0, 5), "of 1 to 39935 boxes")):
            with pytest.raises(RuntimeError, match=f"'input' must be {message}"):
                torch_npu.npu_nms_with_mask(torch.zeros(shape).npu(), 0.5)
