"""npu_recurrent_gated_delta_rule and its functional form against the recurrence in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.support import make, max_error


def integers(values):
    return torch.tensor(list(values), dtype=torch.int32).to(make(1).device)


def inputs(lengths, key_heads=2, heads=4, key_width=16, width=8, dtype=torch.bfloat16):
    tokens = sum(lengths)
    unit = torch.nn.functional.normalize
    q = unit(make(tokens, key_heads, key_width, seed=1), dim=-1).bfloat16()
    k = unit(make(tokens, key_heads, key_width, seed=2), dim=-1).bfloat16()
    v = make(tokens, heads, width, dtype=torch.bfloat16, seed=3)
    state = make(tokens + 3, heads, width, key_width, seed=4).to(dtype)
    return [q, k, v, state], {
        "beta": make(tokens, heads, low=0.05, high=0.95, seed=5).bfloat16(),
        "scale": 0.5,
        "actual_seq_lengths": integers(lengths),
        "ssm_state_indices": integers(reversed(range(2, tokens + 2))),
        "num_accepted_tokens": integers(max(1, n - 1) for n in lengths),
        "g": make(tokens, heads, low=-1, high=0, seed=6),
        "gk": make(tokens, heads, key_width, low=-1, high=0, seed=7),
    }


def reference(q, k, v, state, *, beta, scale, g, gk, **indices):
    q, k, v, beta, state = (x.cpu().double() for x in (q, k, v, beta, state))
    lengths = indices["actual_seq_lengths"].tolist()
    blocks = indices["ssm_state_indices"].tolist()
    accepted = indices["num_accepted_tokens"]
    accepted = [1] * len(lengths) if accepted is None else accepted.tolist()
    group = v.shape[1] // q.shape[1]
    out, new = torch.zeros_like(v), state.clone()
    start = 0
    for length, taken in zip(lengths, accepted, strict=True):
        for h in range(v.shape[1]):
            s = state[blocks[start + taken - 1], h]
            for t in range(start, start + length):
                key = k[t, h // group]
                if g is not None:
                    s = s * g[t, h].cpu().double().exp()
                if gk is not None:
                    s = s @ torch.diag(gk[t, h].cpu().double().exp())
                s = s + beta[t, h] * torch.outer(v[t, h] - s @ key, key)
                out[t, h] = s @ q[t, h // group] * scale
                new[blocks[t], h] = s
        start += length
    return out, new


def compare(args, options):
    want, states = reference(*args, **options)
    before = args[3].clone()
    out = torch_npu.npu_recurrent_gated_delta_rule(*args, **options)
    assert out.dtype == torch.bfloat16
    assert max_error(out, want) <= 1.1 * max_error(want.bfloat16(), want) + 1e-5
    rounded = states.to(before.dtype)
    assert max_error(args[3], states) <= 1.1 * max_error(rounded, states) + 1e-5
    return before, out


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("lengths", [[1], [2, 3], [8, 1, 4]])
def test_recurrence(lengths, dtype):
    compare(*inputs(lengths, dtype=dtype))


@pytest.mark.parametrize("absent", ["g", "gk", "num_accepted_tokens"])
def test_optional(absent):
    args, options = inputs([2, 3])
    compare(args, {**options, absent: None})


def test_functional_form_leaves_the_state():
    args, options = inputs([2, 3])
    before = args[3].clone()
    out, state = torch_npu.npu_recurrent_gated_delta_rule_functional(*args, **options)
    assert torch.equal(args[3].cpu(), before.cpu())
    again = torch_npu.npu_recurrent_gated_delta_rule(*args, **options)
    assert torch.equal(out.cpu(), again.cpu()) and torch.equal(state.cpu(), args[3].cpu())


def test_non_contiguous_state():
    args, options = inputs([2, 3])
    wide = make(*args[3].shape[:2], 16, 16).bfloat16()
    args[3] = wide[:, :, ::2]
    compare(args, options)


@pytest.mark.parametrize("name", ["beta", "scale", "actual_seq_lengths", "ssm_state_indices"])
def test_required(name):
    args, options = inputs([2])
    with pytest.raises(RuntimeError, match=f"argument '{name}' must be given by this operator"):
        torch_npu.npu_recurrent_gated_delta_rule(*args, **{**options, name: None})


def test_too_few_blocks():
    args, options = inputs([2, 3])
    args[3] = args[3][:4]
    with pytest.raises(
        RuntimeError, match=r"'state' must be of at least 5 blocks.*\(4, 4, 8, 16\)"
    ):
        torch_npu.npu_recurrent_gated_delta_rule(*args, **options)


def test_too_many_tokens():
    args, options = inputs([9])
    with pytest.raises(RuntimeError, match=r"'actual_seq_lengths' must be at most 8.*\[9\]"):
        torch_npu.npu_recurrent_gated_delta_rule(*args, **options)


def test_index_out_of_range():
    args, options = inputs([2])
    options["ssm_state_indices"] = integers([0, 5])
    with pytest.raises(RuntimeError, match=r"'ssm_state_indices' must be in \[0, 4\].*\[0, 5\]"):
        torch_npu.npu_recurrent_gated_delta_rule(*args, **options)


def test_accepted_out_of_range():
    args, options = inputs([2])
    options["num_accepted_tokens"] = integers([3])
    with pytest.raises(RuntimeError, match=r"'num_accepted_tokens' must be from 1 to .*\[3\]"):
        torch_npu.npu_recurrent_gated_delta_rule(*args, **options)


def test_gk_dtype():
    args, options = inputs([2])
    options["gk"] = options["gk"].bfloat16()
    with pytest.raises(RuntimeError, match="'gk' must be of dtype torch.float32"):
        torch_npu.npu_recurrent_gated_delta_rule(*args, **options)


@pytest.mark.parametrize("width", [16, 20])
@pytest.mark.parametrize("key_width", [64, 72])
def test_single_tokens(key_width, width):
    """One token a sequence, as in decoding; whole vectors and others, in place and into other blocks."""
    args, options = inputs([1, 1, 1], key_width=key_width, width=width)
    options |= {"gk": None, "num_accepted_tokens": None}
    compare(args, options)
    compare(args, options | {"g": None})
