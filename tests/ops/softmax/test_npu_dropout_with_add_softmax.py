"""npu_dropout_with_add_softmax against the definition in fp64, given the mask it returns."""

import pytest
import torch

import torch_npu
from tests.ops.support import assert_accurate, gradcheck, make, relaxed


def softmax(x, x1, alpha):
    z = x1 + alpha * x
    e = torch.exp(z - z.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def verify(shape, dtype, alpha, prob):
    x, x1 = make(*shape, dtype=dtype), make(*shape, dtype=dtype, seed=3)
    mask, s, y = torch_npu.npu_dropout_with_add_softmax(x, x1, alpha, prob, -1)
    assert mask.dtype == torch.uint8 and mask.shape == (-(-x.numel() // 128) * 128,)
    assert s.dtype == y.dtype == dtype and s.shape == y.shape == x.shape
    want = softmax(x.cpu().double(), x1.cpu().double(), alpha)
    plain = (x1.cpu() + alpha * x.cpu()).softmax(-1)
    assert_accurate(s, want, plain)
    keep = mask.cpu()[: x.numel()].view(x.shape).double()
    assert_accurate(y, want * keep / (1 - prob), (plain * keep / (1 - prob)).to(dtype))


@relaxed
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("alpha,prob", [(2, 0.9), (0.125, 0.0), (-1.5, 0.5)])
@pytest.mark.parametrize("shape", [(2, 3, 16, 24), (1, 1, 1, 1), (0, 2, 4, 4)])
def test_forward(shape, dtype, alpha, prob):
    verify(shape, dtype, alpha, prob)


def test_documented_shape():
    verify((1, 32, 128, 128), torch.float16, 0.125, 0.1)


def test_share_of_dropped_elements():
    x = make(4, 8, 128, 128)
    mask, _, y = torch_npu.npu_dropout_with_add_softmax(x, x, 1, 0.3, -1)
    kept = mask.cpu().double()
    assert set(kept.unique().tolist()) == {0.0, 1.0}
    assert kept.mean().item() == pytest.approx(0.7, abs=0.005)
    assert torch.equal(y.cpu().flatten() != 0, kept.bool())


@relaxed
def test_mask_is_padded_to_128():
    x = make(1, 3, 5, 7)
    mask, _, _ = torch_npu.npu_dropout_with_add_softmax(x, x, 1, 0.0, -1)
    assert mask.shape == (128,)


def test_two_calls_differ():
    x = make(4, 8, 128, 128)
    first = torch_npu.npu_dropout_with_add_softmax(x, x, 1, 0.5, -1)[0].cpu()
    second = torch_npu.npu_dropout_with_add_softmax(x, x, 1, 0.5, -1)[0].cpu()
    assert not torch.equal(first, second)


def test_gradients_without_dropping():
    x = make(1, 2, 2, 3, dtype=torch.float64, requires_grad=True)
    x1 = make(1, 2, 2, 3, dtype=torch.float64, seed=9, requires_grad=True)
    gradcheck(lambda a, b: torch_npu.npu_dropout_with_add_softmax(a, b, 0.7, 0.0, -1)[2], x, x1)


@relaxed
def test_gradients_through_the_mask():
    x = make(2, 2, 4, 8, requires_grad=True)
    x1 = make(2, 2, 4, 8, seed=9, requires_grad=True)
    mask, _, y = torch_npu.npu_dropout_with_add_softmax(x, x1, 0.7, 0.4, -1)
    dy = make(2, 2, 4, 8, seed=11)
    y.backward(dy)
    a, b = (t.detach().cpu().double().requires_grad_() for t in (x, x1))
    keep = mask.cpu()[: x.numel()].view(x.shape).double()
    ((b + 0.7 * a).softmax(-1) * keep / 0.6).backward(dy.cpu().double())
    assert_accurate(x.grad, a.grad, a.grad.float())
    assert_accurate(x1.grad, b.grad, b.grad.float())


def test_backward_operator_by_hand():
    dy = torch.tensor([[[[1.0, 0.0]]]]).to(make(1).device)
    s = torch.tensor([[[[0.75, 0.25]]]]).to(dy.device)
    mask = torch.ones(128, dtype=torch.uint8).to(dy.device)
    dx, dx1 = torch_npu.npu_dropout_with_add_softmax_backward(dy, mask, s, 2.0, 0.5, -1)
    # dy is doubled by 1 / (1 - 0.5): g = (2, 0), sum g s = 1.5, s (g - 1.5) = (0.375, -0.375)
    assert dx1.flatten().tolist() == [0.375, -0.375]
    assert dx.flatten().tolist() == [0.75, -0.75]


def test_bad_shape():
    with pytest.raises(
        RuntimeError, match=r"npu_dropout_with_add_softmax: argument 'self' .*128, 256"
    ):
        torch_npu.npu_dropout_with_add_softmax(
            make(1, 32, 64, 128), make(1, 32, 64, 128), 1, 0.1, -1
        )


def test_bad_batch():
    with pytest.raises(
        RuntimeError, match=r"'self' must be .* multiple of 32, .*\(3, 4, 128, 128\)"
    ):
        torch_npu.npu_dropout_with_add_softmax(
            make(3, 4, 128, 128), make(3, 4, 128, 128), 1, 0.1, -1
        )


def test_other_shape_of_x1():
    with pytest.raises(RuntimeError, match=r"argument 'x1' must be of shape \(1, 32, 128, 128\)"):
        torch_npu.npu_dropout_with_add_softmax(
            make(1, 32, 128, 128), make(1, 32, 128, 256), 1, 0.1, -1
        )


@pytest.mark.parametrize("prob", [1.0, -0.1])
def test_bad_probability(prob):
    x = make(1, 32, 128, 128)
    with pytest.raises(RuntimeError, match=f"'prob' must be at least 0 and below 1, .*{prob}"):
        torch_npu.npu_dropout_with_add_softmax(x, x, 1, prob, -1)


def test_bad_dim():
    x = make(1, 32, 128, 128)
    with pytest.raises(RuntimeError, match="argument 'dim' must be -1, but received 2"):
        torch_npu.npu_dropout_with_add_softmax(x, x, 1, 0.5, 2)
