"""Builds one of MindSpeed's operators, runs it on the device and compares it with a formula: mindspeed_ops.py NAME."""

from __future__ import annotations

import sys

import torch

import torch_npu  # noqa: F401


def make(*shape, dtype=torch.float32):
    return torch.randn(*shape).to(dtype).npu()


def wide(*tensors):
    return [x.detach().cpu().double().requires_grad_() for x in tensors]


def close(found, expected, tolerance=1e-4):
    torch.testing.assert_close(
        found.detach().cpu().double(), expected.detach(), atol=tolerance, rtol=tolerance
    )


def rotary():
    from mindspeed.ops.npu_rotary_position_embedding import npu_rotary_position_embedding

    x, cos, sin = make(2, 8, 3, 16), make(1, 8, 1, 16), make(1, 8, 1, 16)
    a, c, s = wide(x, cos, sin)
    left, right = a.chunk(2, -1)
    expected = a * c + torch.cat([-right, left], -1) * s
    x.requires_grad_()
    found = npu_rotary_position_embedding(x, cos, sin, 0)
    close(found, expected)
    grad = make(2, 8, 3, 16)
    found.backward(grad)
    expected.backward(grad.cpu().double())
    close(x.grad, a.grad)


def ring_attention_update():
    from mindspeed.ops.npu_ring_attention_update import npu_ring_attention_update

    def part():
        stats = [make(1, 2, 8, 1).abs().expand(1, 2, 8, 8).contiguous() for _ in range(2)]
        return make(8, 1, 32), *stats

    first, second = part(), part()
    found = npu_ring_attention_update(*first, *second, layout="SBH")
    (o1, m1, s1), (o2, m2, s2) = wide(*first), wide(*second)
    largest = torch.maximum(m1, m2)
    w1, w2 = s1 * (m1 - largest).exp(), s2 * (m2 - largest).exp()

    def rows(weight):  # (1, heads, S, 8) -> (S, 1, heads * D)
        return weight[0, :, :, :1].permute(1, 0, 2).expand(8, 2, 16).reshape(8, 1, 32)

    close(found[0], o1 * rows(w1 / (w1 + w2)) + o2 * rows(w2 / (w1 + w2)))
    close(found[1], largest)
    close(found[2], w1 + w2)


def gmm():
    from mindspeed.ops.gmm import npu_gmm

    x, weight = make(6, 8, dtype=torch.bfloat16), make(2, 8, 4, dtype=torch.bfloat16)
    a, w = wide(x, weight)
    expected = torch.cat([a[:2] @ w[0], a[2:] @ w[1]])
    x.requires_grad_()
    weight.requires_grad_()
    found = npu_gmm(x, weight, group_list=[2, 6], group_type=0)
    close(found, expected, 5e-2)
    grad = make(6, 4, dtype=torch.bfloat16)
    found.backward(grad)
    expected.backward(grad.cpu().double())
    close(x.grad, a.grad, 5e-2)
    close(weight.grad, w.grad, 5e-2)


def moe_token_permute():
    from mindspeed.ops.npu_moe_token_permute import npu_moe_token_permute

    tokens, indices = (
        make(4, 8, dtype=torch.bfloat16),
        torch.tensor([[1, 0], [2, 1], [0, 2], [1, 2]]),
    )
    (a,) = wide(tokens)
    rows = indices.flatten().argsort(stable=True) // 2
    tokens.requires_grad_()
    found, _ = npu_moe_token_permute(tokens, indices.npu(), 8)
    close(found, a[rows])
    grad = make(8, 8, dtype=torch.bfloat16)
    found.backward(grad)
    a[rows].backward(grad.cpu().double())
    close(tokens.grad, a.grad, 2e-2)


torch.manual_seed(0)
globals()[sys.argv[1]]()
print("equal")
