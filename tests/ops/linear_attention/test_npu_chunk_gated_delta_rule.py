"""npu_chunk_gated_delta_rule against the recurrence, token by token in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.support import make, max_error


def inputs(lengths, key_heads, heads, key_width, width, state=torch.bfloat16):
    tokens = sum(lengths)
    unit = torch.nn.functional.normalize
    q = unit(make(tokens, key_heads, key_width, seed=1), dim=-1).bfloat16()
    k = unit(make(tokens, key_heads, key_width, seed=2), dim=-1).bfloat16()
    v = make(tokens, heads, width, dtype=torch.bfloat16, seed=3)
    return (q, k, v), {
        "beta": make(tokens, heads, low=0.05, high=0.95, seed=4).bfloat16(),
        "initial_state": make(len(lengths), heads, width, key_width, seed=5).to(state),
        "actual_seq_lengths": torch.tensor(lengths, dtype=torch.int32).to(q.device),
        "scale": key_width**-0.5,
        "g": make(tokens, heads, low=-1, high=0, seed=6),
    }


def reference(q, k, v, beta, initial_state, actual_seq_lengths, scale, g):
    q, k, v, beta, s0 = (x.cpu().double() for x in (q, k, v, beta, initial_state))
    g = torch.zeros_like(beta) if g is None else g.cpu().double()
    group = v.shape[1] // q.shape[1]
    out, final = torch.zeros_like(v), s0.clone()
    start = 0
    for b, length in enumerate(actual_seq_lengths.tolist()):
        for h in range(v.shape[1]):
            s = s0[b, h]
            for t in range(start, start + length):
                a, key = g[t, h].exp(), k[t, h // group]
                s = a * s + beta[t, h] * torch.outer(v[t, h] - a * (s @ key), key)
                out[t, h] = s @ q[t, h // group] * scale
            final[b, h] = s
        start += length
    return out, final


def compare(args, options):
    out, state = torch_npu.npu_chunk_gated_delta_rule(*args, **options)
    want, last = reference(*args, **options)
    assert out.dtype == torch.bfloat16 and state.dtype == options["initial_state"].dtype
    # both results are rounded once from fp32
    assert max_error(out, want) <= 1.1 * max_error(want.bfloat16(), want) + 1e-5
    assert max_error(state, last) <= 1.1 * max_error(last.to(state.dtype), last) + 1e-5


@pytest.mark.parametrize(
    "lengths,key_heads,heads,key_width,width",
    [
        ([5], 1, 1, 8, 8),
        ([64], 2, 2, 16, 16),
        ([65, 3], 2, 4, 16, 8),
        ([1, 130, 2], 1, 3, 12, 20),
        ([3, 0, 4], 2, 2, 8, 4),
    ],
)
def test_recurrence(lengths, key_heads, heads, key_width, width):
    compare(*inputs(lengths, key_heads, heads, key_width, width))


def test_without_decay():
    args, options = inputs([70, 9], 1, 2, 8, 8)
    compare(args, {**options, "g": None})


def test_float32_state():
    args, options = inputs([9, 4], 1, 2, 8, 8, torch.float32)
    compare(args, options)


def test_scale_multiplies():
    args, options = inputs([6], 1, 1, 8, 8)
    compare(args, {**options, "scale": 2.0})


def test_non_contiguous():
    (q, k, v), options = inputs([6, 2], 2, 2, 8, 8)
    q, k, v = (x.transpose(0, 2).contiguous().transpose(0, 2) for x in (q, k, v))
    compare((q, k, v), options)


def test_tokens_past_the_last_sequence_are_zero():
    args, options = inputs([6, 2], 1, 1, 8, 8)
    options["actual_seq_lengths"] = torch.tensor([4, 2], dtype=torch.int32).to(args[0].device)
    out, _ = torch_npu.npu_chunk_gated_delta_rule(*args, **options)
    assert not out[6:].cpu().any() and out[:6].cpu().any()


@pytest.mark.parametrize("name", ["beta", "initial_state", "actual_seq_lengths", "scale"])
def test_required(name):
    args, options = inputs([4], 1, 1, 8, 8)
    with pytest.raises(RuntimeError, match=f"argument '{name}' must be given by this operator"):
        torch_npu.npu_chunk_gated_delta_rule(*args, **{**options, name: None})


def test_heads_do_not_divide():
    args, options = inputs([4], 2, 2, 8, 8)
    value = make(4, 3, 8, dtype=torch.bfloat16)
    with pytest.raises(RuntimeError, match="'value' must be of a number of heads divisible by"):
        torch_npu.npu_chunk_gated_delta_rule(*args[:2], value, **options)


def test_too_wide():
    args, options = inputs([2], 1, 1, 144, 8)
    with pytest.raises(RuntimeError, match=r"'query' must be of head size at most 128.*144"):
        torch_npu.npu_chunk_gated_delta_rule(*args, **options)


def test_lengths_exceed_the_tokens():
    args, options = inputs([4], 1, 1, 8, 8)
    options["actual_seq_lengths"] = torch.tensor([5], dtype=torch.int32).to(args[0].device)
    with pytest.raises(RuntimeError, match=r"'actual_seq_lengths' must be of a sum of at most 4"):
        torch_npu.npu_chunk_gated_delta_rule(*args, **options)


def test_bad_state_shape():
    args, options = inputs([4], 1, 1, 8, 4)
    state = options["initial_state"].transpose(2, 3)
    with pytest.raises(RuntimeError, match=r"'initial_state' must be of shape \(1, 1, 4, 8\)"):
        torch_npu.npu_chunk_gated_delta_rule(*args, **{**options, "initial_state": state})


def test_query_dtype():
    (q, k, v), options = inputs([4], 1, 1, 8, 8)
    with pytest.raises(RuntimeError, match="'query' must be of dtype torch.bfloat16.*float16"):
        torch_npu.npu_chunk_gated_delta_rule(q.half(), k, v, **options)
