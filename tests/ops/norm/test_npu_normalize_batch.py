"""npu_normalize_batch against loops in fp64."""

import statistics

import pytest
import torch

import torch_npu
from tests.ops.support import make, max_error


def lengths(*values):
    return torch.tensor(values, dtype=torch.int32).to(make(1).device)


@pytest.mark.parametrize("kind", [0, 1])
def test_against_loops(kind):
    x, steps = make(3, 2, 9, low=1, high=10), [4, 9, 6]
    got = torch_npu.npu_normalize_batch(x, lengths(*steps), kind)
    want = torch.zeros(3, 2, 9, dtype=torch.float64)
    rows = x.cpu().double().tolist()
    for n, count in enumerate(steps):
        for f in range(2):
            valid = rows[n][f][:count]
            if kind:
                valid = [v for feature in rows[n] for v in feature[:count]]
            mean, deviation = statistics.fmean(valid), statistics.stdev(valid)
            want[n, f] = (torch.tensor(rows[n][f]) - mean) / (deviation + 1e-5)
    assert max_error(got, want) < 1e-5


def test_default_is_by_feature():
    x = make(2, 3, 5)
    one, other = (torch_npu.npu_normalize_batch(x, lengths(5, 3), *a) for a in ((), (0,)))
    assert torch.equal(one.cpu(), other.cpu())


def test_refusals():
    with pytest.raises(RuntimeError, match="'normalize_type' must be 0 or 1, but received 2"):
        torch_npu.npu_normalize_batch(make(2, 3, 5), lengths(5, 3), 2)
    with pytest.raises(RuntimeError, match=r"'seq_len' must be of shape \(2\).*\(3,\)"):
        torch_npu.npu_normalize_batch(make(2, 3, 5), lengths(5, 3, 1))
    with pytest.raises(RuntimeError, match="'self' must be a tensor of 3 dimensions"):
        torch_npu.npu_normalize_batch(make(2, 3), lengths(5, 3))
