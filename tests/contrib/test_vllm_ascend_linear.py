"""Convolutions and the gated delta rule of `_C_ascend` against token-by-token formulas in float64."""

from __future__ import annotations

import pytest
import torch
from ascend_ops import npu, ops, replayed, run

DIM, PAD = 32, -1


def convolved(history, tokens, weight, bias, silu):
    """Each token from the ones before it, in float64."""
    seen, rows = [row.double() for row in history], []
    for token in tokens.double():
        seen.append(token)
        taps = torch.stack(seen[-weight.shape[0] :])
        value = (taps * weight.double()).sum(0) + (0 if bias is None else bias.double())
        rows.append(value / (1 + (-value).exp()) if silu else value)
    return torch.stack(rows)


def close(got, expected, tolerance=2e-2):
    torch.testing.assert_close(got.double(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("biased", [False, True])
def test_convolution_of_prompts(width, biased):
    lengths, lines, initial = [1, 5, 3, 2], [3, PAD, 0, 1], [True, True, False, True]
    x = torch.randn(sum(lengths), DIM).half()
    weight, states = torch.randn(width, DIM).half(), torch.randn(5, width + 1, DIM).half()
    bias = torch.randn(DIM).half() if biased else None
    starts = torch.tensor([0, *lengths]).cumsum(0).int()
    cache, output = states.npu(), torch.zeros_like(x).npu()
    result = ops.npu_causal_conv1d_custom(
        output, *npu(x, weight), cache, *npu(bias, starts, torch.tensor(lines).int()),
        torch.tensor(initial).npu(), None, biased, PAD, 0,
    )  # fmt: skip
    assert result.data_ptr() == output.data_ptr()
    expected = states.clone()
    for part, line, old in zip(x.split(lengths), lines, initial):
        if line == PAD:
            continue
        history = states[line, : width - 1] if old else torch.zeros(width - 1, DIM).half()
        expected[line, : width - 1] = torch.cat((history, part))[1 - width :]
    assert torch.equal(cache.cpu(), expected)
    for part, got, line, old in zip(x.split(lengths), output.cpu().split(lengths), lines, initial):
        if line == PAD:
            assert not got.any()
            continue
        history = states[line, : width - 1] if old else torch.zeros(width - 1, DIM)
        close(got, convolved(history, part, weight, bias, biased))


def test_convolution_of_speculative_steps():
    """Two accepted tokens: the history ends at the second one; the line keeps two tokens and the three new ones."""
    x, weight = torch.randn(2, 3, DIM).bfloat16(), torch.randn(4, DIM).bfloat16()
    states = torch.randn(4, 6, DIM).bfloat16()
    cache = states.npu()
    y = ops.npu_causal_conv1d_310(
        *npu(x, weight), None, cache, None, *npu(torch.tensor([2, 0]).int()), None,
        torch.tensor([2, 1]).int().npu(), 1, PAD, 1,
    ).cpu()  # fmt: skip
    for sequence, (line, accepted) in enumerate([(2, 2), (0, 1)]):
        history = states[line, accepted - 1 : accepted + 2]
        close(y[sequence], convolved(history, x[sequence], weight, None, True))
        kept = torch.cat((history[1:], x[sequence]))
        assert torch.equal(cache[line].cpu()[:5], kept)
    assert torch.equal(cache.cpu()[[1, 3]], states[[1, 3]])


def test_convolution_of_single_tokens_is_captured():
    x, weight = npu(torch.randn(3, DIM).half(), torch.randn(4, DIM).half())
    states = torch.zeros(3, 3, DIM).half().npu()
    args = (x, weight, None, states, None, None, None, None, 0, PAD, 1)
    y = replayed(lambda: ops.npu_causal_conv1d_310(*args), lambda: (x.fill_(2.0), states.zero_()))
    close(y.cpu(), 2.0 * weight[3].cpu().double().expand(3, DIM))
    assert (states[:, 2] == 2).all() and not states[:, :2].any()


def test_convolutions_that_do_not_fit_raise():
    x, weight, states = npu(torch.randn(3, DIM), torch.randn(4, DIM), torch.randn(3, 2, DIM))
    with pytest.raises(RuntimeError, match="'conv_states' must be of at least 3 tokens a line"):
        ops.npu_causal_conv1d_310(x, weight, None, states, *[None] * 4, 0, PAD, 1)
    with pytest.raises(RuntimeError, match="'query_start_loc' must be given for a prompt"):
        ops.npu_causal_conv1d_310(x, weight[:2], None, states, *[None] * 4, 0, PAD, 0)


def rule(q, k, v, beta, g, state, scale):
    """The delta rule of one head, token by token: outputs and the last state (K, V)."""
    rows, state = [], state.clone()
    for t in range(q.shape[0]):
        state = state * g[t].exp()
        state = state + torch.outer(k[t], (v[t] - k[t] @ state) * beta[t])
        rows.append(scale * (q[t] @ state))
    return torch.stack(rows), state


def chunked(k, v, beta, g, size):
    """w and u of flash-linear-attention by forward substitution, and the sums of g within chunks."""
    w, u, sums = torch.zeros_like(k), torch.zeros_like(v), torch.zeros_like(g)
    for first in range(0, k.shape[0], size):
        part = range(first, min(first + size, k.shape[0]))
        total = 0.0
        for t in part:
            total = total + g[t]
            sums[t] = total
            w[t] = beta[t] * k[t] * sums[t].exp()
            u[t] = beta[t] * v[t]
            for s in range(first, t):
                weight = beta[t] * (k[t] @ k[s]) * (sums[t] - sums[s]).exp()
                w[t] -= weight * w[s]
                u[t] -= weight * u[s]
    return w, u, sums


@pytest.mark.parametrize("lengths", [None, [5, 0, 9]])
@pytest.mark.parametrize("decayed", [True, False])
def test_chunks_of_the_delta_rule(lengths, decayed):
    """Both operators one after the other are the recurrent rule; two heads of values share one of keys."""
    tokens, size, scale = sum(lengths) if lengths else 10, 4, 0.5
    q, k = torch.randn(tokens, 8).double(), torch.randn(tokens, 8).double() * 0.3
    v, beta = torch.randn(2, tokens, 6).double(), torch.rand(2, tokens).double()
    g = -torch.rand(2, tokens).double() * decayed
    sequences = lengths or [tokens]
    initial = torch.randn(len(sequences), 2, 8, 6).double()
    w, u, sums, expected, last = [], [], [], [], []
    for head in range(2):
        parts, start = [], 0
        for n, length in enumerate(sequences):
            part = slice(start, start + length)
            if length:
                made = chunked(k[part], v[head, part], beta[head, part], g[head, part], size)
                out = rule(
                    q[part], k[part], v[head, part], beta[head, part], g[head, part],
                    initial[n, head], scale,
                )  # fmt: skip
                parts.append((*made, out[0]))
            last.append(out[1] if length else initial[n, head])
            start += length
        for target, found in zip((w, u, sums, expected), zip(*parts)):
            target.append(torch.cat(found))
    w, u, sums, expected = (torch.stack(t)[None].float() for t in (w, u, sums, expected))
    bounds = [0, *torch.tensor(lengths).cumsum(0).tolist()] if lengths else None
    chunks = [i for n, c in enumerate(sequences) for j in range(-(-c // size)) for i in (n, j)]
    options = {"chunk_size": size, "cu_seqlens": bounds, "g": sums if decayed else None}
    options["chunk_indices"] = chunks if lengths else None
    heads = k.float()[None, None]
    h, new, final = run(
        ops.chunk_gated_delta_rule_fwd_h, heads, w, u, initial_state=initial.float(),
        output_final_state=True, **options,
    )  # fmt: skip
    assert h.shape == (1, 2, len(chunks) // 2, 8, 6)
    last = torch.stack(last).view(2, len(sequences), 8, 6).transpose(0, 1)
    close(final, last, 1e-4)
    out = run(ops.chunk_fwd_o, q.float()[None, None], heads, new, h, scale, **options)
    close(out, expected.double(), 1e-4)


def test_chunks_that_do_not_fit_raise():
    k, u = torch.randn(1, 1, 6, 8).npu(), torch.randn(1, 2, 6, 4).npu()
    w = torch.randn(1, 2, 6, 8).npu()
    with pytest.raises(RuntimeError, match="'chunk_indices' must be of a pair for each of the 2"):
        ops.chunk_gated_delta_rule_fwd_h(k, w, u, cu_seqlens=[0, 2, 6])
    with pytest.raises(NotImplementedError, match="'gk' must be left at None"):
        ops.chunk_gated_delta_rule_fwd_h(k, w, u, gk=w)
    with pytest.raises(RuntimeError, match="chunk_fwd_o: argument 'h' must be of shape"):
        ops.chunk_fwd_o(k, k, u, torch.randn(1, 2, 2, 8, 4).npu(), 1.0)


def test_recurrent_rule_in_float16():
    lengths, accepted = torch.tensor([2, 1]).int(), torch.tensor([2, 1]).int()
    q, k = (torch.nn.functional.normalize(torch.randn(3, 1, 16), dim=-1).half() for _ in range(2))
    v, beta, g = torch.randn(3, 2, 8).half(), torch.rand(3, 2).half(), -torch.rand(3, 2)
    state, index = torch.randn(4, 2, 8, 16).half(), torch.tensor([2, 0, 3]).int()
    device = state.npu()
    out = ops.npu_recurrent_gated_delta_rule_310(
        *npu(q, k, v, beta), device, *npu(lengths, index), g.npu(), None, accepted.npu(), 0.25
    ).cpu()
    for head in range(2):
        for tokens, start in (((0, 1), 0), ((2,), 3)):
            s = state[start, head].double().t()
            for t in tokens:
                one, s = rule(
                    q[t].double(), k[t].double(), v[t, head : head + 1].double(),
                    beta[t, head : head + 1].double(), g[t, head : head + 1].double(), s, 0.25,
                )  # fmt: skip
                close(out[t, head], one[0], 5e-3)
                close(device[index[t], head].cpu(), s.t(), 5e-3)
