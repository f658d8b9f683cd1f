"""npu_grid_assign_positive against the two loops of the assigner."""

import pytest
import torch

import torch_npu
from tests.ops.support import make


def reference(
    start, overlaps, flags, best, which, gt_best, gt_which, count, positive, least, every
):
    out = start.tolist()
    n, k = len(out), len(gt_best)
    for j in range(n):
        if flags[j] and best[j] > positive:
            out[j] = float(which[j]) + 1
    for i in range(min(count, k)):
        if gt_best[i] > least:
            if every:
                for j in range(n):
                    if flags[j] and overlaps[i, j] == gt_best[i]:
                        out[j] = i + 1.0
            elif flags[gt_which[i]]:
                out[int(gt_which[i])] = i + 1.0
    return out


def inputs(n=30, k=6, dtype=torch.float32, seed=0):
    source = torch.Generator().manual_seed(seed)
    overlaps = torch.randint(0, 12, (k, n), generator=source).to(dtype) / 12  # with many ties
    flags = torch.randint(0, 2, (n,), generator=source).to(torch.uint8)
    best, which = overlaps.max(0)
    gt_best, gt_which = overlaps.max(1)
    start = torch.full((n,), -1.0, dtype=dtype)
    return [start, overlaps, flags, best, which.int(), gt_best, gt_which.int()]


def run(tensors, *numbers):
    return torch_npu.npu_grid_assign_positive(*(t.npu() for t in tensors), *numbers)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("every", [True, False])
@pytest.mark.parametrize(
    "positive,least,count", [(0.5, 0.0, 6), (0.8, 0.95, 6), (0.9, 0.2, 3), (2.0, 0.0, 128)]
)
def test_loops(dtype, every, positive, least, count):
    tensors = inputs(dtype=dtype)
    result = run(tensors, count, positive, least, every)
    assert result.dtype == dtype
    assert result.tolist() == reference(*tensors, count, positive, least, every)


@pytest.mark.parametrize("every", [True, False])
def test_the_later_ground_truth_wins(every):
    overlaps = torch.tensor([[0.9, 0.1], [0.9, 0.3], [0.9, 0.2]])
    best, which = overlaps.max(0)
    gt_best, gt_which = overlaps.max(1)
    tensors = [
        torch.zeros(2),
        overlaps,
        torch.ones(2, dtype=torch.uint8),
        best,
        which.int(),
        gt_best,
    ]
    assert run([*tensors, gt_which.int()], 3, 0.5, 0.0, every).tolist() == [3, 0]


def test_no_ground_truth_counts():
    tensors = inputs()
    result = run(tensors, 0, 2.0, 0.0, True)
    assert torch.equal(result.cpu(), tensors[0])


def test_number_as_a_tensor():
    tensors = inputs()
    count = torch.tensor([6], dtype=torch.int32).npu()
    assert torch.equal(run(tensors, count, 0.5, 0.0, True), run(tensors, 6, 0.5, 0.0, True))


def test_index_outside():
    tensors = inputs()
    tensors[6] = tensors[6].clone()
    tensors[6][2] = 30
    with pytest.raises(
        RuntimeError,
        match=r"npu_grid_assign_positive: argument 'gt_argmax_overlaps' must be in \[0, 30\).*30 at index 2",
    ):
        run(tensors, 6, 0.5, 0.0, False)


def test_long_index():
    tensors = inputs()
    tensors[4] = tensors[4].long()
    with pytest.raises(RuntimeError, match="argument 'argmax_overlaps' must be of dtype .*int64"):
        run(tensors, 6, 0.5, 0.0, True)


def test_bad_shapes():
    tensors = inputs()
    tensors[2] = make(7, dtype=torch.uint8, low=0, high=2).cpu()
    with pytest.raises(
        RuntimeError, match=r"argument 'box_responsible_flags' must be of shape \(30\).*\(7,\)"
    ):
        run(tensors, 6, 0.5, 0.0, True)
