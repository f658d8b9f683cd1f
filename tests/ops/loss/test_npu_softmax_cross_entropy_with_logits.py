"""npu_softmax_cross_entropy_with_logits against the sum written out in fp64."""

import math

import pytest
import torch

import torch_npu
from tests.ops.families import as_chip
from tests.ops.support import assert_accurate, gradcheck, make


def reference(x, labels):
    rows = []
    for row, label in zip(x.tolist(), labels.tolist(), strict=True):
        top = max(row)
        lse = top + math.log(sum(math.exp(v - top) for v in row))
        rows.append(-sum(y * (v - lse) for v, y in zip(row, label, strict=True)))
    return torch.tensor(rows, dtype=torch.double)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(1, 48), (4, 9), (7, 1), (3, 130)])
def test_forward(dtype, shape):
    x, labels = make(*shape, dtype=dtype, low=-4, high=4), make(*shape, dtype=dtype, low=0, seed=2)
    loss = torch_npu.npu_softmax_cross_entropy_with_logits(x, labels)
    assert loss.dtype == dtype and loss.shape == shape[:1]
    plain = -(labels.cpu() * x.cpu().log_softmax(-1)).sum(-1)
    assert_accurate(loss, reference(x.cpu().double(), labels.cpu().double()), plain)


def test_documented_value():
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0]]).to(make(1).device)
    assert torch_npu.npu_softmax_cross_entropy_with_logits(x, x).tolist() == pytest.approx(
        [14.4019]
    )


def test_empty():
    assert torch_npu.npu_softmax_cross_entropy_with_logits(make(0, 5), make(0, 5)).shape == (0,)


def test_non_contiguous():
    x, labels = make(6, 4).t(), make(6, 4, low=0, seed=2).t()
    loss = torch_npu.npu_softmax_cross_entropy_with_logits(x, labels)
    want = reference(x.cpu().double(), labels.cpu().double())
    assert_accurate(loss, want, want.float())


def test_gradients_with_labels_that_sum_to_one():
    x = make(3, 5, dtype=torch.float64, requires_grad=True)
    labels = make(3, 5, dtype=torch.float64, seed=8).softmax(-1)
    gradcheck(lambda a: torch_npu.npu_softmax_cross_entropy_with_logits(a, labels), x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_backward_operator(dtype):
    grad, x, labels = make(4, dtype=dtype), make(4, 9, dtype=dtype), make(4, 9, dtype=dtype, low=0)
    got = torch_npu.npu_softmax_cross_entropy_with_logits_backward(grad, x, labels)
    e = x.cpu().double().exp()
    want = (e / e.sum(-1, keepdim=True) - labels.cpu().double()) * grad.cpu().double()[:, None]
    plain = (x.cpu().softmax(-1) - labels.cpu()) * grad.cpu()[:, None]
    assert got.dtype == dtype
    assert_accurate(got, want, plain)


def test_bad_dtype():
    with pytest.raises(RuntimeError, match="with_logits: argument 'self' must be of dtype .*int32"):
        torch_npu.npu_softmax_cross_entropy_with_logits(
            make(2, 3, dtype=torch.int32, high=4), make(2, 3)
        )


def test_bad_rank():
    with pytest.raises(RuntimeError, match=r"'self' must be a tensor of 2 dim.*\(2, 3, 4\)"):
        torch_npu.npu_softmax_cross_entropy_with_logits(make(2, 3, 4), make(2, 3, 4))


def test_other_labels():
    with pytest.raises(
        RuntimeError, match=r"argument 'labels' must be of shape \(2, 3\).*\(2, 4\)"
    ):
        torch_npu.npu_softmax_cross_entropy_with_logits(make(2, 3), make(2, 4))


def test_no_bfloat16_on_the_training_series():
    from softnpu import chips

    name = next((n for n in chips.names() if chips.get(n).family == "910A"), None)
    assert name is not None
    x = make(2, 3, dtype=torch.bfloat16)
    with (
        as_chip(name),
        pytest.raises(RuntimeError, match="argument 'self' must be of dtype .*bfloat16"),
    ):
        torch_npu.npu_softmax_cross_entropy_with_logits(x, x)
