"""npu_scatter_list and npu_scatter_list_ against loops."""

import pytest
import torch

import torch_npu
from tests.ops.support import make


def tensors(dtype=torch.float16):
    return [make(2, 5, 4, dtype=dtype, seed=i) for i in range(3)]


def integers(values, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype).to(make(1).device)


@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("axis", [-2, -1, 1, 2])
def test_positions(axis, masked, kind):
    given, last = tensors(), axis in (-1, 2)
    shape = (3, 2, 5, 1) if last else (3, 2, 1, 4)
    updates = make(*shape, dtype=torch.float16, seed=9)
    at, mask = [0, 3, 2], [1, 0, 1] if masked else None
    want = [t.cpu().clone() for t in given]
    for i, start in enumerate(at):
        if mask is None or mask[i]:
            if last:
                want[i][:, :, start] = updates[i, :, :, 0].cpu()
            else:
                want[i][:, start] = updates[i, :, 0].cpu()
    options = {"mask": None if mask is None else integers(mask, torch.uint8), "axis": axis}
    before = [t.clone() for t in given]
    got = torch_npu.npu_scatter_list(given, integers(at, kind), updates, **options)
    assert all(torch.equal(a.cpu(), b) for a, b in zip(got, want, strict=True))
    assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(given, before, strict=True))
    assert torch_npu.npu_scatter_list_(given, integers(at, kind), updates, **options) is None
    assert all(torch.equal(a.cpu(), b) for a, b in zip(given, want, strict=True))


def test_lengths():
    given, updates = tensors(), make(3, 2, 3, 4, dtype=torch.float16, seed=9)
    at = [[0, 3], [4, 1], [2, 0]]
    want = [t.cpu().clone() for t in given]
    for i, (start, count) in enumerate(at):
        want[i][:, start : start + count] = updates[i, :, :count].cpu()
    got = torch_npu.npu_scatter_list(given, integers(at), updates)
    assert all(torch.equal(a.cpu(), b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize(
    "changes,message",
    [
        ({"reduce": "add"}, "'reduce' must be 'update', but received 'add'"),
        ({"axis": 0}, "'axis' must be the last dimension or the one before, but received 0"),
        ({"indices": [0, 1]}, r"'indices' must be of shape \(3\).*\(2,\)"),
        ({"indices": [0, 5, 1]}, r"'indices' must be such that each slice lies in \[0, 5\)"),
    ],
)
def test_refusals(changes, message):
    given = {
        "self": tensors(),
        "indices": [0, 1, 2],
        "updates": make(3, 2, 1, 4, dtype=torch.float16),
    }
    given = {**given, **changes}
    given["indices"] = integers(given["indices"])
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_scatter_list(**given)
