"""Linear attention of sgl-kernel-npu's library, against plain loops: convolution, delta rule, inverses."""

from __future__ import annotations

import math

import pytest
import torch
from sgl_ops import close, library, npu, ops  # noqa: F401  # a fixture

i32 = torch.int32
BF16 = torch.bfloat16


def _silu(x):
    return x / (1 + torch.exp(-x))


def test_causal_conv1d_prompt():
    x, weight, bias = torch.randn(7, 16).half(), torch.randn(3, 16).half(), torch.randn(16).half()
    states = torch.randn(5, 2, 16).half()
    bounds, lines, initial = [0, 4, 4, 5, 7], [3, 0, -1, 1], [1, 0, 0, 0]
    expected, kept = torch.zeros(7, 16).double(), states.clone()
    for s, line in enumerate(lines):
        part = x[bounds[s] : bounds[s + 1]]
        if line == -1 or not len(part):
            continue
        past = states[line] if initial[s] else torch.zeros_like(states[line])
        tokens = torch.cat((past, part))
        kept[line] = tokens[-2:]
        for t in range(len(part)):
            value = sum(tokens[t + k].double() * weight[k].double() for k in range(3))
            expected[bounds[s] + t] = _silu(value + bias.double())
    device = states.npu()
    numbers = (torch.tensor(n) for n in (bounds, lines, initial))
    y = ops.causal_conv1d(*npu(x, weight), device, *npu(bias, *numbers), activation_mode=1)
    close(y, expected)
    assert torch.equal(device.cpu(), kept)
    with pytest.raises(RuntimeError, match=r"'cache_indices' must be in \[0, 5\) or -1"):
        ops.causal_conv1d(
            *npu(x, weight), device, None, *npu(torch.tensor(bounds), torch.tensor([5, 0, 0, 0]))
        )
    with pytest.raises(RuntimeError, match="'query_start_loc' must be ascending, from 0 to 7"):
        ops.causal_conv1d(*npu(x, weight), device, None, torch.tensor([0, 8]).npu())
    with pytest.raises(RuntimeError, match="'x' must be contiguous"):
        ops.causal_conv1d(x.npu().t(), weight.npu(), device, None, torch.tensor([0, 8]).npu())


def _conv_steps(x, weight, state, accepted):
    """What the card does for one sequence, token by token: x (S, D), state (length, D), shifted by S before."""
    width, state = weight.shape[0], state.clone()
    if len(state) > len(x):
        state[: len(state) - len(x)] = state[len(x) :].clone()
    offset = 0 if accepted is None else accepted - 1
    moving = len(x) if accepted is None else min(accepted, len(x))
    results = []
    for j in range(len(x)):
        late = max(j - moving, 0) if j >= moving else None
        total = torch.zeros(x.shape[1]).double()
        for k in range(width - 1):
            at = k + offset + (late or 0)
            token = state[at].clone()
            if late is None and at:
                state[at - 1] = token
            total += token.double() * weight[k].double()
        state[offset + width - 2 if late is None else offset + width - 1 + late] = x[j]
        results.append(total + x[j].double() * weight[-1].double())
    return torch.stack(results), state


@pytest.mark.parametrize("accepted", [None, [3, 1, 2]])
def test_causal_conv1d_update(accepted):
    x, weight = torch.randn(3, 3, 8).to(BF16), torch.randn(4, 8).to(BF16)
    states = torch.randn(5, 5, 8).to(BF16)  # (taps - 1) + (tokens - 1)
    lines = [4, 1, 0]
    expected, kept = [], states.clone()
    for s, line in enumerate(lines):
        taken = None if accepted is None else accepted[s]
        result, kept[line] = _conv_steps(x[s], weight, states[line], taken)
        expected.append(result)
    device = states.npu()
    count = None if accepted is None else torch.tensor(accepted, dtype=i32)
    args = npu(x, weight), npu(torch.tensor(lines, dtype=i32), None, count)
    y = ops.causal_conv1d_update(*args[0], device, *args[1])
    close(y, torch.stack(expected), 5e-2)
    assert torch.equal(device.cpu(), kept)
    with pytest.raises(RuntimeError, match=r"'conv_state_indices' must be in \[0, 5\) or -1"):
        ops.causal_conv1d_update(*args[0], device, torch.tensor([5, 0, 0], dtype=i32).npu())
    with pytest.raises(RuntimeError, match="'conv_state' must be of at least"):
        many = torch.full((3,), 4, dtype=i32).npu()
        ops.causal_conv1d_update(*args[0], device, *npu(torch.tensor(lines, dtype=i32)), None, many)


@pytest.mark.parametrize("speculative", [False, True])
def test_recurrent_gated_delta_rule(speculative):
    batch, length, nk, nv, dk, dv = 2, 3, 1, 2, 8, 4
    mixed = torch.randn(batch, length, 2 * nk * dk + nv * dv).to(BF16)
    beta, g = torch.randn(batch, length, nv).to(BF16), -torch.rand(batch, length, nv)
    start = torch.randn(5, nv, dv, dk).to(BF16)
    middle = torch.randn(6, nv, dv, dk).to(BF16)
    blocks = (
        torch.arange(6, dtype=i32).view(2, 3)
        if speculative
        else torch.tensor([[4] * 3, [1] * 3]).int()
    )
    lengths, accepted, lines = [3, 2], [1, 2], [3, 0]
    states = middle.clone() if speculative else start.clone()
    expected = torch.zeros(batch, length, nv, dv).double()
    for b in range(batch):
        block = int(blocks[b, accepted[b] - 1 if speculative else 0])
        first = start[lines[b]] if speculative and block % length == 0 else states[block]
        for h in range(nv):
            state = first[h].double()
            for t in range(lengths[b]):
                q, k, v = mixed[b, t].double().split((dk, dk, nv * dv))
                q, k = (z / math.sqrt(float((z * z).sum()) + 1e-6) for z in (q, k))
                state = state * math.exp(float(g[b, t, h]))
                strength = 1 / (1 + math.exp(-float(beta[b, t, h])))
                state = state + torch.outer((v.view(nv, dv)[h] - state @ k) * strength, k)
                expected[b, t, h] = state @ q * 0.5
                states[blocks[b, t], h] = state.to(BF16)
    device, other = start.npu(), middle.npu()
    extra = (
        npu(other.cpu(), torch.tensor(lines), torch.tensor(accepted))
        if speculative
        else (None,) * 3
    )
    args = npu(beta), npu(torch.tensor(lengths, dtype=i32), blocks)
    out = ops.recurrent_gated_delta_rule(
        mixed.npu(), device, *args[0], 0.5, *args[1], nk, nv, *extra, g.npu()
    )
    close(out, expected)
    close(extra[0] if speculative else device, states.double())
    if speculative:
        assert torch.equal(device.cpu(), start)
    with pytest.raises(RuntimeError, match=r"'ssm_state_indices' must be in \[0, 5\)"):
        ops.recurrent_gated_delta_rule(
            mixed.npu(), device, *args[0], 0.5, args[1][0], args[1][1] + 5, nk, nv
        )
    with pytest.raises(RuntimeError, match="'mix_qkv' must be of dtype torch.bfloat16"):
        ops.recurrent_gated_delta_rule(mixed.half().npu(), device, *args[0], 0.5, *args[1], nk, nv)


@pytest.mark.parametrize("transposed", [False, True])
def test_triangular_inverse(transposed):
    lower = torch.randn(2, 3, 9, 9).tril(-1) / 4 + torch.eye(9)
    given = lower.npu().mT if transposed else lower.npu()
    found = ops.triangular_inverse(given)
    assert found.is_contiguous()
    close(found @ lower.npu(), torch.eye(9).double().expand(2, 3, 9, 9), 1e-5)
    with pytest.raises(RuntimeError, match="'x' must be of square matrices"):
        ops.triangular_inverse(torch.zeros(2, 3).npu())
    with pytest.raises(RuntimeError, match="'x' must be of elements without gaps"):
        ops.triangular_inverse(torch.zeros(4, 8).npu()[:, ::2])
