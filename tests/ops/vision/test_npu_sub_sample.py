"""npu_sub_sample: how many examples of each kind stay, which labels they have, and that the choice is even."""

import pytest
import torch

import torch_npu


def labels(ignored, negative, positive):
    made = [-1] * ignored + [0] * negative + [1 + i % 3 for i in range(positive)]
    order = torch.randperm(len(made), generator=torch.Generator().manual_seed(1))
    return torch.tensor(made, dtype=torch.int32)[order]


@pytest.mark.parametrize(
    "counts,size,fraction,kept",
    [
        ((5, 40, 30), 20, 0.5, (10, 10)),
        ((5, 40, 3), 20, 0.5, (17, 3)),
        ((0, 4, 30), 20, 0.25, (4, 5)),
        ((2, 3, 2), 100, 1.0, (3, 2)),
        ((2, 3, 2), 0, 0.5, (0, 0)),
        ((2, 0, 0), 4, 0.5, (0, 0)),
        ((0, 9, 9), 5, 0.5, (3, 2)),
    ],
)
def test_counts(counts, size, fraction, kept):
    given = labels(*counts)
    found = torch_npu.npu_sub_sample(given.npu(), size, fraction).cpu()
    assert found.dtype == torch.int32 and found.shape == given.shape
    stays = found != -1
    assert torch.equal(found[stays], given[stays])
    assert (int((found == 0).sum()), int((found > 0).sum())) == kept


def test_every_example_has_its_chance():
    given = labels(0, 6, 6).npu()
    torch.npu.manual_seed(3)
    runs = torch.stack([torch_npu.npu_sub_sample(given, 6, 0.5).cpu() for _ in range(200)])
    share = (runs != -1).double().mean(0)
    assert (share > 0.3).all() and (share < 0.7).all()
    torch.npu.manual_seed(3)
    assert torch.equal(torch_npu.npu_sub_sample(given, 6, 0.5).cpu(), runs[0])


@pytest.mark.parametrize(
    "given,size,fraction,message",
    [
        (torch.zeros(3), 2, 0.5, "'self' must be of dtype torch.int32"),
        (torch.zeros(3, 1, dtype=torch.int32), 2, 0.5, "'self' must be a tensor of 1 dimensions"),
        (torch.zeros(3, dtype=torch.int32), -1, 0.5, "'per_images' must be at least 0"),
        (torch.zeros(3, dtype=torch.int32), 2, 1.5, "'positive_fraction' must be from 0 to 1"),
    ],
)
def test_refusals(given, size, fraction, message):
    with pytest.raises(RuntimeError, match=f"npu_sub_sample: argument {message}"):
        torch_npu.npu_sub_sample(given.npu(), size, fraction)
