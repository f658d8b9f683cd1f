"""Linear attention of sgl-kernel-npu: its convolution, the gated delta rule, inverses of triangular matrices."""

from __future__ import annotations

import torch

from softnpu.contrib.kernels.conv import check_convolution, convolution
from softnpu.contrib.sgl_kernel_npu._define import sgl_op
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops.linear_attention._conv1d import convolve, values
from torch_npu.ops.linear_attention._delta import per_value_head

__all__ = [
    "causal_conv1d",
    "causal_conv1d_update",
    "recurrent_gated_delta_rule",
    "triangular_inverse",
]

_HALVES = (torch.float16, torch.bfloat16)


def _given(tensor):
    """None for an optional tensor without elements, as the library takes it."""
    return None if tensor is None or tensor.numel() == 0 else tensor


@sgl_op(
    "causal_conv1d(Tensor x, Tensor weight, Tensor conv_states, Tensor? bias=None, "
    "Tensor? query_start_loc=None, Tensor? cache_indices=None, Tensor? has_initial_state=None, "
    "Tensor? num_accepted_tokens=None, int activation_mode=0, int pad_slot_id=-1, "
    "int run_mode=0) -> Tensor"
)
def causal_conv1d(
    x,
    weight,
    conv_states,
    bias,
    query_start_loc,
    cache_indices,
    has_initial_state,
    num_accepted_tokens,
    activation_mode,
    pad_slot_id,
    run_mode,
):
    """The causal convolution of each channel over cached tokens, which are written, though the schema does not say so.

    run_mode 0 is a prompt, 1 a step of decoding. Rows of sequences without a line are 0.
    """
    y = torch.zeros_like(x, memory_format=torch.contiguous_format)
    convolution(
        y, x, weight, conv_states, _given(bias), _given(query_start_loc), _given(cache_indices),
        _given(has_initial_state), _given(num_accepted_tokens), activation_mode, pad_slot_id,
        run_mode,
    )  # fmt: skip
    return y


@causal_conv1d.meta
def _(x):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@causal_conv1d.check
def _(x, weight, conv_states, bias, activation_mode, pad_slot_id, run_mode, **rest):
    must.dtype("x", x, *_HALVES)
    for name, tensor in (("x", x), ("weight", weight), ("conv_states", conv_states)):
        must.hold(tensor.is_contiguous(), name, "contiguous", tensor.stride())
    names = ("query_start_loc", "cache_indices", "has_initial_state", "num_accepted_tokens")
    check_convolution(
        x, weight, ("conv_states", conv_states), ("bias", _given(bias)),
        [(name, _given(rest[name])) for name in names], (activation_mode, run_mode),
    )  # fmt: skip
    lines, starts = _given(rest["cache_indices"]), _given(rest["query_start_loc"])
    count = conv_states.shape[0]
    if must.has_data(lines):
        found = lines.tolist()
        inside = all(line == pad_slot_id or 0 <= line < count for line in found)
        must.hold(inside, "cache_indices", f"in [0, {count}) or {pad_slot_id}", found)
    if must.has_data(starts):
        found, rows = starts.tolist(), x.shape[:-1].numel()
        inside = found[0] >= 0 and found[-1] <= rows and sorted(found) == found
        must.hold(inside, "query_start_loc", f"ascending, from 0 to {rows}", found)


@sgl_op(
    "causal_conv1d_update(Tensor x, Tensor weight, Tensor(a!) conv_state, "
    "Tensor conv_state_indices, Tensor? bias=None, Tensor? num_accepted_tokens=None, "
    "Tensor? query_start_loc=None, bool activation_mode=False, int pad_slot_id=-1) -> Tensor"
)
def causal_conv1d_update(
    x,
    weight,
    conv_state,
    conv_state_indices,
    bias,
    num_accepted_tokens,
    query_start_loc,
    activation_mode,
    pad_slot_id,
):
    """A step of decoding of the causal convolution, over lines (length, D) of cached tokens.

    x (B, S, D), weight (taps, D), conv_state (lines, length, D). With `num_accepted_tokens` a of a sequence, its window
    starts at token a - 1 of its line, its first a tokens move the window and the token before it on, and the others are
    kept behind it. As on the card, lines of more than S tokens are shifted by S before that, and line 0 is where an index
    is negative.
    """
    batch, length, width = x.shape
    lines = values(_given(conv_state_indices)) or list(range(batch))
    accepted, bounds = values(_given(num_accepted_tokens)), values(_given(query_start_loc))
    size, before = conv_state.shape[1], weight.shape[0] - 1
    if size > length:
        old = conv_state[[max(line, 0) for line in lines]]
        old[:, : size - length] = old[:, length:].clone()
        conv_state[[max(line, 0) for line in lines]] = old
    flat, y = x.reshape(-1, width), torch.zeros_like(x, memory_format=torch.contiguous_format)
    out = y.view(-1, width)
    for sequence, line in enumerate(lines):
        if line == pad_slot_id:
            continue
        first, last = sequence * length, (sequence + 1) * length
        if bounds is not None:
            first, last = bounds[sequence], bounds[sequence + 1]
        count = last - first
        taken = count if accepted is None else accepted[sequence]
        offset = 0 if accepted is None else taken - 1
        state, moving = conv_state[line], min(taken, count)
        kept = offset + before + count - moving
        fits = offset >= 0 and kept <= size
        must.hold(fits, "conv_state", f"of at least {kept} tokens for sequence {sequence}", size)
        tokens = torch.cat((state[offset : offset + before], flat[first:last]))
        result = convolve(tokens, weight)
        result = result if _given(bias) is None else result + wide(bias)
        result = torch.nn.functional.silu(result) if activation_mode else result
        out[first:last] = result.to(y.dtype)
        # the window and, if there is one, the token before it take what follows; later ones take new tokens
        after = torch.cat((state[max(offset - 1, 0) : offset], tokens))
        part = after[moving : moving + before + min(offset, 1)]
        state[max(offset - 1, 0) : offset + before] = part
        state[offset + before : kept] = flat[last - (count - moving) : last]
    return y


@causal_conv1d_update.meta
def _(x):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@causal_conv1d_update.check
def _(x, weight, conv_state, conv_state_indices, bias, activation_mode, pad_slot_id, **rest):
    must.anything(activation_mode)
    must.dtype("x", x, *_HALVES)
    must.ndim("x", x, 3)
    batch, length, width = x.shape
    must.same_dtype("weight", weight, "x", x)
    must.shape("weight", weight, (None, width))
    must.same_dtype("conv_state", conv_state, "x", x)
    must.shape("conv_state", conv_state, (None, None, width))
    for name, tensor in (("x", x), ("weight", weight), ("conv_state", conv_state)):
        must.hold(tensor.is_contiguous(), name, "contiguous", tensor.stride())
    must.shape("bias", _given(bias), (width,))
    lines = _given(conv_state_indices)
    accepted, starts = (_given(rest[n]) for n in ("num_accepted_tokens", "query_start_loc"))
    for name, tensor, size in (
        ("conv_state_indices", lines, batch),
        ("num_accepted_tokens", accepted, batch),
        ("query_start_loc", starts, batch + 1),
    ):
        must.dtype(name, tensor, torch.int32)
        must.shape(name, tensor, (size,))
    count = conv_state.shape[0]
    if must.has_data(lines):
        found = lines.tolist()
        inside = all(line == pad_slot_id or 0 <= line < count for line in found)
        must.hold(inside, "conv_state_indices", f"in [0, {count}) or {pad_slot_id}", found)
    if must.has_data(starts):
        found = starts.tolist()
        inside = found[0] >= 0 and found[-1] <= batch * length and sorted(found) == found
        must.hold(inside, "query_start_loc", f"ascending, from 0 to {batch * length}", found)


@sgl_op(
    "recurrent_gated_delta_rule(Tensor mix_qkv, Tensor(a!) recurrent_state, Tensor beta, "
    "float scale, Tensor actual_seq_lengths, Tensor ssm_state_indices, int nk, int nv, "
    "Tensor(b!)? intermediate_state=None, Tensor? cache_indices=None, "
    "Tensor? num_accepted_tokens=None, Tensor? g=None, Tensor? gk=None) -> Tensor"
)
def recurrent_gated_delta_rule(
    mix_qkv,
    recurrent_state,
    beta,
    scale,
    actual_seq_lengths,
    ssm_state_indices,
    nk,
    nv,
    intermediate_state,
    cache_indices,
    num_accepted_tokens,
    g,
):
    r"""The gated delta rule of `npu_recurrent_gated_delta_rule` for queries, keys and values in one tensor.

    Queries and keys are divided by their lengths ($\sqrt{\sum x^2 + 10^{-6}}$), the strength of an update is
    sigmoid(beta). mix_qkv (B, S, nk Dk + nk Dk + nv Dv), states (blocks, nv, Dv, Dk), ssm_state_indices (B, S). With
    `intermediate_state` the states after each token go there; a sequence whose first block is a multiple of S starts
    from block `cache_indices[b]` of `recurrent_state`, others from the intermediate one. Tokens behind the length of a
    sequence give 0.
    """
    batch, length = mix_qkv.shape[:2]
    width, key_width = recurrent_state.shape[2:]
    q, k, v = wide(mix_qkv).split((nk * key_width, nk * key_width, nv * width), -1)
    q, k = (_unit(t.reshape(batch * length, nk, key_width), nv) for t in (q, k))
    v = v.reshape(batch * length, nv, width)
    strength = wide(beta).sigmoid().view(batch * length, nv, 1)
    decay = None if g is None else wide(g).reshape(batch * length, nv).exp()[..., None, None]
    states = recurrent_state if intermediate_state is None else intermediate_state
    states = states.view(-1, nv, width, key_width)
    blocks, taken = ssm_state_indices.reshape(-1).tolist(), values(num_accepted_tokens)
    out = torch.zeros_like(v)
    for b, count in enumerate(actual_seq_lengths.tolist()):
        first = b * length
        block = blocks[first + (0 if taken is None else taken[b] - 1)]
        if intermediate_state is not None and block % length == 0:
            state = wide(recurrent_state[cache_indices[b].long()])
        else:
            state = wide(states[block])
        for t in range(first, first + count):
            state = state if decay is None else state * decay[t]
            update = (v[t] - (state * k[t, :, None]).sum(-1)) * strength[t]
            state = state + update[:, :, None] * k[t, :, None]
            out[t] = (state * q[t, :, None]).sum(-1) * scale
            states[blocks[t]] = state.to(states.dtype)
    return out.to(mix_qkv.dtype).view(batch, length, nv, width)


def _unit(x, heads):
    x = x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)
    return per_value_head(x, heads)


@recurrent_gated_delta_rule.meta
def _(mix_qkv, recurrent_state, nv):
    return mix_qkv.new_empty(*mix_qkv.shape[:2], nv, recurrent_state.shape[2])


@recurrent_gated_delta_rule.check
def _(mix_qkv, recurrent_state, beta, scale, nk, nv, intermediate_state, **rest):
    must.anything(scale, rest["gk"])  # the kernel does not read gk
    must.dtype("mix_qkv", mix_qkv, torch.bfloat16)
    must.ndim("mix_qkv", mix_qkv, 3)
    batch, length, _ = mix_qkv.shape
    must.hold(nk > 0 and nv > 0 and nv % nk == 0, "nv", f"a multiple of nk ({nk})", nv)
    must.dtype("recurrent_state", recurrent_state, torch.bfloat16)
    must.shape("recurrent_state", recurrent_state, (None, nv, None, None))
    width, key_width = recurrent_state.shape[2:]
    must.shape("mix_qkv", mix_qkv, (batch, length, 2 * nk * key_width + nv * width))
    must.dtype("beta", beta, torch.bfloat16)
    must.shape("beta", beta, (batch, length, nv))
    lengths, blocks = rest["actual_seq_lengths"], rest["ssm_state_indices"]
    must.dtype("actual_seq_lengths", lengths, torch.int32)
    must.shape("actual_seq_lengths", lengths, (batch,))
    must.dtype("ssm_state_indices", blocks, torch.int32)
    must.shape("ssm_state_indices", blocks, (batch, length))
    must.shape("num_accepted_tokens", rest["num_accepted_tokens"], (batch,))
    states = recurrent_state
    if intermediate_state is not None:
        states = intermediate_state
        must.dtype("intermediate_state", states, torch.bfloat16)
        must.hold(states.is_contiguous(), "intermediate_state", "contiguous", states.stride())
        must.hold(states.shape[-3:] == recurrent_state.shape[1:], "intermediate_state",
                  f"of states {tuple(recurrent_state.shape[1:])}", tuple(states.shape))  # fmt: skip
        must.present("cache_indices", rest["cache_indices"], "with 'intermediate_state'")
        must.shape("cache_indices", rest["cache_indices"], (batch,))
    if rest["g"] is not None:
        many = batch * length * nv
        must.hold(rest["g"].numel() == many, "g", f"of {many} elements", tuple(rest["g"].shape))
    if must.has_data(lengths):
        lines = None if intermediate_state is None else recurrent_state.shape[0]
        _check_values(states.shape[:-3].numel(), lines, length, rest)


def _check_values(blocks, lines, length, rest):
    counts = rest["actual_seq_lengths"].tolist()
    must.hold(all(0 <= n <= length for n in counts), "actual_seq_lengths", f"from 0 to {length}",
              counts)  # fmt: skip
    for name, limit in (("ssm_state_indices", blocks), ("cache_indices", lines)):
        if rest[name] is not None and limit is not None:
            found = rest[name].reshape(-1).tolist()
            must.hold(all(0 <= i < limit for i in found), name, f"in [0, {limit})", found)
    if rest["num_accepted_tokens"] is not None:
        found = rest["num_accepted_tokens"].tolist()
        fits = all(1 <= n <= length for n in found)
        must.hold(fits, "num_accepted_tokens", f"from 1 to {length}", found)


@sgl_op("triangular_inverse(Tensor x) -> Tensor")
def triangular_inverse(x):
    """The inverse of matrices with ones on the diagonal and zeros above it; both are taken to be so, and not read.

    x (..., n, n) is read as its elements lie in memory, whatever its strides: transposed matrices are those with zeros
    below the diagonal. The result is contiguous. Each step rounds to the dtype.
    """
    matrix = torch.as_strided(x, x.shape, torch.empty(x.shape, device="meta").stride())
    matrix = matrix.reshape(-1, *x.shape[-2:])
    size = x.shape[-1]
    rest = torch.eye(size, dtype=x.dtype).repeat(matrix.shape[0], 1, 1)
    for k in range(size - 1, 0, -1):
        rest[:, :, :k] -= rest[:, :, k : k + 1] * matrix[:, k : k + 1, :k]
    return rest.view(x.shape)


@triangular_inverse.meta
def _(x):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@triangular_inverse.check
def _(x):
    must.dtype("x", x, torch.float16, torch.float32)
    must.hold(x.dim() >= 2, "x", "of at least 2 dimensions", tuple(x.shape))
    must.hold(x.shape[-1] == x.shape[-2], "x", "of square matrices", tuple(x.shape))
    expected = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        dense = x.numel() == 0 or size == 1 or stride == expected
        must.hold(dense, "x", "of elements without gaps", x.stride())
        expected *= size
