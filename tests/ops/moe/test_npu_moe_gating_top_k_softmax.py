"""npu_moe_gating_top_k_softmax against softmax in fp64 and a loop for the choice."""

import pytest
import torch

import torch_npu
from tests.ops.moe.loops import largest, npu
from tests.ops.support import assert_accurate, make


def choice(weights, k):
    """Experts by the loop, from the float32 weights that the operator compares."""
    flat = weights.reshape(-1, weights.size(-1)).tolist()
    return torch.tensor([largest(row, k) for row in flat]).reshape(*weights.shape[:-1], k)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape,k", [((7, 16), 3), ((2, 5, 9), 4), ((1, 1), 1), ((4, 33), 33)])
def test_choice_and_weights(dtype, shape, k):
    x = make(*shape, dtype=dtype, low=-3, high=3)
    y, expert, row = torch_npu.npu_moe_gating_top_k_softmax(x, None, k)
    weights = torch.softmax(x.cpu().float(), -1)
    want = choice(weights, k)
    assert expert.dtype == row.dtype == torch.int32 and y.dtype == dtype
    assert torch.equal(expert.cpu().long(), want)
    exact = torch.softmax(x.cpu().double(), -1).gather(-1, want)
    assert_accurate(y, exact, exact.to(dtype))
    rows = x.numel() // x.size(-1)
    assert row.reshape(rows, k).tolist() == [[j * rows + r for j in range(k)] for r in range(rows)]


def test_ties_take_the_smaller_expert():
    x = npu([[1.0, 3.0, 3.0, 1.0, 3.0], [0.0] * 5], torch.float32)
    _, expert, _ = torch_npu.npu_moe_gating_top_k_softmax(x, k=4)
    assert expert.tolist() == [[1, 2, 4, 0], [0, 1, 2, 3]]


@pytest.mark.parametrize("shape", [(4, 6), (2, 3, 6)])
def test_finished_rows_have_no_expert(shape):
    x, finished = make(*shape), make(*shape[:-1], dtype=torch.bool)
    y, expert, row = torch_npu.npu_moe_gating_top_k_softmax(x, finished, k=2)
    y0, expert0, row0 = torch_npu.npu_moe_gating_top_k_softmax(x, k=2)
    assert finished.any() and not finished.all()
    assert torch.equal(y, y0) and torch.equal(row, row0)
    assert (expert[finished] == 6).all() and torch.equal(expert[~finished], expert0[~finished])


def test_no_rows_and_non_contiguous():
    y, expert, row = torch_npu.npu_moe_gating_top_k_softmax(make(0, 8), k=2)
    assert y.shape == expert.shape == row.shape == (0, 2)
    x = make(8, 5).t()
    got = torch_npu.npu_moe_gating_top_k_softmax(x, k=3)
    want = torch_npu.npu_moe_gating_top_k_softmax(x.contiguous(), k=3)
    assert all(torch.equal(a, b) and a.is_contiguous() for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("k", [0, 9])
def test_bad_k(k):
    with pytest.raises(
        RuntimeError, match=rf"argument 'k' must be within \[1, 8\], but received {k}"
    ):
        torch_npu.npu_moe_gating_top_k_softmax(make(2, 8), k=k)


def test_k_above_1024():
    with pytest.raises(
        RuntimeError, match=r"argument 'k' must be within \[1, 1024\], but received 1025"
    ):
        torch_npu.npu_moe_gating_top_k_softmax(make(1, 2000), k=1025)


def test_bad_finished():
    with pytest.raises(RuntimeError, match=r"argument 'finished' must be of shape \(2\).*\(3,\)"):
        torch_npu.npu_moe_gating_top_k_softmax(make(2, 8), make(3, dtype=torch.bool))
    with pytest.raises(
        RuntimeError, match="argument 'finished' must be of dtype torch.bool.*int32"
    ):
        torch_npu.npu_moe_gating_top_k_softmax(make(2, 8), npu([0, 1]))


def test_bad_x():
    with pytest.raises(RuntimeError, match="argument 'x' must be a tensor of 2 to 3 dimensions"):
        torch_npu.npu_moe_gating_top_k_softmax(make(8))


def test_there_is_no_gradient():
    y = torch_npu.npu_moe_gating_top_k_softmax(make(4, 8, requires_grad=True), None, 2)[0]
    with pytest.raises(
        NotImplementedError, match="npu_moe_gating_top_k_softmax' is not implemented"
    ):
        y.sum().backward()
