"""npu_binary_cross_entropy_with_logits_backward against PyTorch's gradient in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.support import assert_accurate, make

KINDS = {0: "none", 1: "mean", 2: "sum"}


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("reduction", KINDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_gradient(dtype, reduction, weighted):
    x, t = make(5, 4, dtype=dtype, low=-4, high=4), make(5, 4, dtype=dtype, low=0, seed=2)
    weight = make(4, dtype=dtype, low=0, seed=3) if weighted else None
    positive = make(4, dtype=dtype, low=0, high=3, seed=4) if weighted else None
    dy = make(5, 4, dtype=dtype, seed=5) if reduction == 0 else make(1, dtype=dtype)[0]
    got = torch_npu.npu_binary_cross_entropy_with_logits_backward(
        dy, x, t, weight, positive, reduction
    )
    leaf = x.cpu().double().requires_grad_()
    w, p = (None if v is None else v.cpu().double() for v in (weight, positive))
    loss = torch.nn.functional.binary_cross_entropy_with_logits(
        leaf, t.cpu().double(), w, pos_weight=p, reduction=KINDS[reduction]
    )
    loss.backward(dy.cpu().double())
    assert got.dtype == dtype
    assert_accurate(got, leaf.grad, leaf.grad.to(dtype), slack=1e-6)


def test_refusals():
    run = torch_npu.npu_binary_cross_entropy_with_logits_backward
    with pytest.raises(RuntimeError, match="'reduction' must be 0, 1 or 2, but received 3"):
        run(make(3), make(3), make(3), None, None, 3)
    with pytest.raises(RuntimeError, match=r"'target' must be of shape \(3\).*\(2,\)"):
        run(make(3), make(3), make(2), None, None, 0)
    with pytest.raises(RuntimeError, match="'self' must be of dtype .*int32"):
        run(make(3), make(3, dtype=torch.int32), make(3), None, None, 0)
