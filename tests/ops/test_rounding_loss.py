"""Where the gradients of losses round: numpy walks through the operations that CANN publishes, bits compared."""

import numpy as np
import pytest
import torch

import torch_npu
from tests.ops.rounding import BRAIN, HALF, F, cast, same, single
from tests.ops.support import make


@pytest.mark.parametrize("dtype", [HALF, BRAIN])
def test_gradient_of_the_split_cross_entropy(dtype):
    """The gradient of the logits is rounded before its products: here each result is the sum of two of them."""
    tokens, rows = 6, 128
    softmax, grad = make(tokens, rows, low=0), make(tokens, seed=1)
    target = make(tokens, dtype=torch.int32, low=0, high=rows, seed=2)
    weight = torch.zeros(rows, rows // 2, dtype=dtype)
    weight[torch.arange(rows), torch.arange(rows) // 2] = 1
    outside = torch.arange(tokens) % 3 == 0
    dx, _ = torch_npu.npu_fused_linear_cross_entropy_loss_with_max_sum_backward(
        grad,
        make(tokens, rows // 2, dtype=dtype),
        weight.npu(),
        outside.npu(),
        target,
        softmax=softmax,
    )
    g = single(softmax)
    for token in range(tokens):
        g[token, target[token].item()] -= F(not outside[token])
    g = g * single(grad)[:, None]
    pairs = cast(g, dtype).reshape(tokens, -1, 2)
    same(dx, pairs[..., 0] + pairs[..., 1])
    assert (cast(g[:, ::2] + g[:, 1::2], dtype) != single(dx)).any()


@pytest.mark.family("A5")
def test_gradient_of_the_binary_cross_entropy_of_logits():
    """(p * t + 1 - t) * sigmoid(x) - p * t, or sigmoid(x) - t: with x = 0, whose sigmoid is exact, in fp32."""
    t, dy, p = make(50, low=0), make(50, seed=1), make(50, low=0, high=3, seed=2)
    x = torch.zeros(50, device="npu")
    run = torch_npu.npu_binary_cross_entropy_with_logits_backward
    a, b, c = single(t), single(dy), single(p)
    found = [run(dy, x, t, None, given, kind) for given in (None, p) for kind in (0, 1)]
    scale, pt = F(1) / F(50), c * a
    for value, slope in ((0, F(0.5) - a), (2, (pt + F(1) - a) * F(0.5) - pt)):
        assert np.array_equal(single(found[value]), slope * b)
        assert np.array_equal(single(found[value + 1]), slope * b * scale)
