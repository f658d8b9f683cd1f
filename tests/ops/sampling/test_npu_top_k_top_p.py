"""npu_top_k_top_p against a row-by-row selection in fp64."""

import math

import pytest
import torch

import torch_npu
from tests.ops.support import make

DTYPES = [torch.float16, torch.bfloat16, torch.float32]


def keep_row(row, p, k):
    """Which elements stay, and how near the nearest decision was to its threshold."""
    order = sorted(range(len(row)), key=lambda i: (row[i], i))
    least = row[order[-k]] if k is not None else -math.inf
    stay = [v for v in order if row[v] >= least]
    kept, margin = set(stay), math.inf
    if p is not None:
        weights = [math.exp(row[v] - row[order[-1]]) for v in stay]
        mass = 0.0
        for v, weight in zip(stay[:-1], weights, strict=False):
            mass += weight / sum(weights)
            margin = min(margin, abs(mass - (1 - p)))
            if mass <= 1 - p:
                kept.discard(v)
    return kept, margin


def verify(logits, p, k):
    got = torch_npu.npu_top_k_top_p(logits, p, k)
    assert got.dtype == logits.dtype and got.shape == logits.shape
    rows = logits.cpu().double().tolist()
    ps = p.cpu().double().tolist() if p is not None else [None] * len(rows)
    ks = k.cpu().tolist() if k is not None else [None] * len(rows)
    sure = 0
    for row, out, pp, kk in zip(rows, got.cpu().double().tolist(), ps, ks, strict=True):
        kept, margin = keep_row(row, pp, kk)
        if margin > 1e-5:  # nearer than fp32 can tell: either answer is right
            sure += 1
            assert out == [v if i in kept else -math.inf for i, v in enumerate(row)]
    assert sure >= len(rows) / 2


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch,size", [(4, 50), (1, 1), (9, 333), (2, 1500)])
def test_both(dtype, batch, size):
    verify(
        make(batch, size, dtype=dtype, low=-5, high=5),
        make(batch, dtype=dtype, low=0),
        make(batch, dtype=torch.int32, low=1, high=min(size, 1024) + 1),
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_top_k_alone(dtype):
    verify(
        make(5, 77, dtype=dtype, low=-5, high=5), None, make(5, dtype=torch.int32, low=1, high=78)
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_top_p_alone(dtype):
    verify(make(5, 77, dtype=dtype, low=-5, high=5), make(5, dtype=dtype, low=0), None)


def test_by_hand():
    logits = torch.log(torch.tensor([[0.5, 0.1, 0.25, 0.15]])).to(make(1).device)
    p = torch.tensor([0.7]).to(logits.device)
    k = torch.tensor([3], dtype=torch.int32).to(logits.device)
    # top 3: 0.5, 0.25, 0.15, renormalized 5/9, 2.5/9, 1.5/9; the last one is below 1 - 0.7
    got = torch_npu.npu_top_k_top_p(logits, p, k).cpu()
    assert torch.equal(got.isinf(), torch.tensor([[False, True, False, True]]))


def test_ties_stay():
    logits = torch.tensor([[1.0, 2.0, 2.0, 2.0]]).to(make(1).device)
    k = torch.tensor([1], dtype=torch.int32).to(logits.device)
    assert torch_npu.npu_top_k_top_p(logits, k=k).tolist() == [[-math.inf, 2.0, 2.0, 2.0]]


@pytest.mark.parametrize("p,left", [(0.0, 1), (1.0, 4)])
def test_extreme_p(p, left):
    logits = torch.tensor([[1.0, 3.0, 2.0, 0.0]]).to(make(1).device)
    got = torch_npu.npu_top_k_top_p(logits, torch.tensor([p]).to(logits.device)).cpu()
    assert got.isfinite().sum() == left and got[0, 1] == 3.0


def test_input_is_not_changed():
    logits = make(3, 20)
    before = logits.clone()
    torch_npu.npu_top_k_top_p(logits, make(3, low=0), make(3, dtype=torch.int32, low=1, high=9))
    assert torch.equal(logits, before)


def test_non_contiguous():
    verify(make(40, 6).t(), make(12, low=0)[::2], make(12, dtype=torch.int32, low=1, high=9)[::2])


def test_empty():
    assert torch_npu.npu_top_k_top_p(make(0, 5), make(0)).shape == (0, 5)


def test_neither():
    with pytest.raises(RuntimeError, match="npu_top_k_top_p: argument 'p' must be given where 'k'"):
        torch_npu.npu_top_k_top_p(make(2, 5))


def test_other_dtype_of_p():
    with pytest.raises(
        RuntimeError, match="argument 'p' must be of the dtype of 'logits'.*float16"
    ):
        torch_npu.npu_top_k_top_p(make(2, 5), make(2, dtype=torch.float16, low=0))


def test_bad_shape_of_k():
    with pytest.raises(RuntimeError, match=r"argument 'k' must be of shape \(2\), .*\(3,\)"):
        torch_npu.npu_top_k_top_p(make(2, 5), None, make(3, dtype=torch.int32, low=1, high=5))


@pytest.mark.parametrize("value", [0, -3, 5, 6])
def test_k_out_of_range_keeps_all(value):
    logits = make(2, 5)
    k = torch.tensor([1, value], dtype=torch.int32).to(logits.device)
    got = torch_npu.npu_top_k_top_p(logits, None, k).cpu()
    assert torch.equal(got[1], logits.cpu()[1])
    assert got[0].isfinite().sum() == 1 and got[0].max() == logits.cpu()[0].max()


def test_k_beyond_1024():
    logits = torch.randperm(4000).float().view(1, -1)
    k = torch.tensor([1500], dtype=torch.int32)
    got = torch_npu.npu_top_k_top_p(logits.npu(), None, k.npu()).cpu()
    assert torch.equal(got.isfinite(), logits >= 2500)


def test_p_out_of_range():
    with pytest.raises(RuntimeError, match="'p' must be from 0 to 1, .* values from 1.5 to 1.5"):
        torch_npu.npu_top_k_top_p(make(1, 5), torch.tensor([1.5]).to(make(1).device))
