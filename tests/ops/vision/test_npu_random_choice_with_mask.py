"""npu_random_choice_with_mask: what is drawn lies in the mask, once each, evenly, and as the seeds say."""

import pytest
import torch

import torch_npu
from tests.ops.support import make


def drawn(result):
    y, mask = result
    return [tuple(row) for row, valid in zip(y.tolist(), mask.tolist(), strict=True) if valid]


@pytest.mark.parametrize("shape", [(50,), (5, 8), (2, 3, 4), (2, 2, 2, 3), (2, 1, 3, 2, 2)])
@pytest.mark.parametrize("count", [1, 7, 200])
def test_places(shape, count):
    x = make(*shape, dtype=torch.bool)
    places = {tuple(p) for p in x.cpu().nonzero().tolist()}
    y, mask = torch_npu.npu_random_choice_with_mask(x, count, 3, 4)
    assert y.shape == (count, len(shape)) and mask.shape == (count,)
    assert y.dtype == torch.int32 and mask.dtype == torch.bool
    found = drawn((y, mask))
    assert len(found) == len(set(found)) == min(count, len(places)) and set(found) <= places
    assert mask.tolist() == sorted(mask.tolist(), reverse=True) and not y[~mask].any()


def test_default_count():
    y, mask = torch_npu.npu_random_choice_with_mask(make(400, dtype=torch.bool))
    assert y.shape == (256, 1) and mask.sum().item() <= 256


def test_seeds_decide():
    x = torch.ones(64, dtype=torch.bool).npu()
    first = torch_npu.npu_random_choice_with_mask(x, 16, 5, 6)[0]
    assert torch.equal(first, torch_npu.npu_random_choice_with_mask(x, 16, 5, 6)[0])
    for seeds in ((5, 7), (6, 6), (6, 5)):
        assert not torch.equal(first, torch_npu.npu_random_choice_with_mask(x, 16, *seeds)[0])


def test_without_seeds_the_device_decides():
    x = torch.ones(64, dtype=torch.bool).npu()
    torch.npu.manual_seed(7)
    a, b = (torch_npu.npu_random_choice_with_mask(x, 16)[0] for _ in range(2))
    torch.npu.manual_seed(7)
    assert torch.equal(a, torch_npu.npu_random_choice_with_mask(x, 16)[0])
    assert not torch.equal(a, b)


def test_evenly():
    """Each of ten places is drawn about 400 times in 2000 draws of two; six standard deviations."""
    x = torch.ones(10, dtype=torch.bool).npu()
    counts = torch.zeros(10)
    for seed in range(1, 2001):
        counts[torch_npu.npu_random_choice_with_mask(x, 2, seed)[0].flatten().cpu().long()] += 1
    assert counts.sum() == 4000 and (counts - 400).abs().max() < 6 * (2000 * 0.2 * 0.8) ** 0.5


def test_nothing_holds():
    y, mask = torch_npu.npu_random_choice_with_mask(torch.zeros(5, dtype=torch.bool).npu(), 3)
    assert not mask.any() and not y.any()


def test_bad_dtype():
    with pytest.raises(
        RuntimeError,
        match="npu_random_choice_with_mask: argument 'x' must be of dtype torch.bool.*uint8",
    ):
        torch_npu.npu_random_choice_with_mask(make(5, dtype=torch.uint8, low=0, high=2))


def test_bad_dimensions():
    with pytest.raises(RuntimeError, match="argument 'x' must be a tensor of 1 to 5 dimensions"):
        torch_npu.npu_random_choice_with_mask(make(1, 1, 1, 1, 1, 2, dtype=torch.bool))


@pytest.mark.parametrize("count", [0, -1])
def test_count_of_nothing(count):
    with pytest.raises(RuntimeError, match=f"argument 'count' must be at least 1.*{count}"):
        torch_npu.npu_random_choice_with_mask(make(5, dtype=torch.bool), count)


def test_negative_seeds():
    x = torch.ones(64, dtype=torch.bool).npu()
    first = torch_npu.npu_random_choice_with_mask(x, 16, -5, 6)[0]
    assert torch.equal(first, torch_npu.npu_random_choice_with_mask(x, 16, -5, 6)[0])
