"""npu_fused_causal_conv1d and npu_fused_causal_conv1d_v2: a causal convolution over cached states."""

from __future__ import annotations

import torch

from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.linear_attention import _conv1d

_OPTIONS = (
    "*, Tensor? query_start_loc=None, Tensor? cache_indices=None,"
    " Tensor? initial_state_mode=None, Tensor? bias=None, Tensor? num_accepted_tokens=None,"
    ' str? activation="None", int? pad_slot_id=-1, int? run_mode=0, int? residual_connection=0,'
    " int? max_query_len=-1, Tensor? num_computed_tokens=None,"
    " Tensor? block_idx_first_scheduled_token=None, Tensor? block_idx_last_scheduled_token=None,"
    ' Tensor? initial_state_idx=None, int? block_size=128, str? conv_mode="default"'
)


@npu_op(
    f"npu_fused_causal_conv1d(Tensor x, Tensor weight, Tensor(a!) conv_states, {_OPTIONS})"
    " -> Tensor"
)
def npu_fused_causal_conv1d(**arguments):
    r"""A causal convolution of 3 taps of each channel; each sequence goes on from its cached tokens.

    $$ y_i = \sum_{k=0}^{2} w_k\, x'_{i+k} \;(+\, x_i), \quad x' = (\text{2 cached tokens}, x) $$

    The line of `conv_states` that a sequence reads is `cache_indices[b]` (b without them), or
    `cache_indices[b, initial_state_idx[b]]` with automatic prefix caching. Before the first token
    (`num_computed_tokens[b]` is 0) the cached tokens are zeros; otherwise they are the last 2 of the
    line, or those that end at `num_accepted_tokens[b] + 1`. Afterwards the line (with prefix caching
    `cache_indices[b, block_idx_last_scheduled_token[b]]`) holds the last tokens, cached and new;
    with prefix caching each block of `block_size` tokens that the sequence completes stores the 2
    tokens before its end.

    Args:
        x: the tokens, (tokens, dim) with `query_start_loc`, or (batch, length, dim) with at most 8
            tokens a sequence; float16 or bfloat16.
        weight: w, (3, dim), of the dtype of `x`.
        conv_states: the cache, (lines, C, dim), written in place; C is at least 2, and length + 1
            where `x` has 3 dimensions.
        query_start_loc: where the sequences begin and end, (batch + 1,) int32.
        cache_indices: the lines, (batch,) int32; (batch, blocks) with prefix caching.
        initial_state_mode: not used by upstream.
        bias: not used by upstream.
        num_accepted_tokens: (batch,) int32, for speculative decoding.
        activation: not used by upstream.
        pad_slot_id: a sequence whose line is this number is skipped.
        run_mode: not used by upstream.
        residual_connection: 1 adds `x` to the result.
        max_query_len: the longest sequence, by which upstream chooses a kernel; the result does not
            depend on it.
        num_computed_tokens: tokens before this call, (batch,) int32; required with prefix caching
            and with "pangu".
        block_idx_first_scheduled_token: the block of the first new token, (batch,) int32.
        block_idx_last_scheduled_token: the block of the last new token, (batch,) int32. Prefix
            caching is on where the three indices of blocks are given.
        initial_state_idx: the block that holds the initial state, (batch,) int32.
        block_size: tokens of a block, at least 2.
        conv_mode: "pangu" zeroes the results of the first 2 tokens of a whole sequence (before the
            residual connection); anything else does not.

    Returns:
        y, with the shape and dtype of `x`.

    Constraints:
        dim from 64 to 16384 and divisible by 16, from 16 on where `x` has 2 dimensions and `max_query_len` is not 1 to 8;
        at most 256 sequences.

    Differs from upstream: upstream has it on Ascend950 only, here every chip computes it. The
    result of a skipped sequence, which the card leaves unwritten, is zero.
    """
    call = _conv1d.given(arguments)
    x = call["x"]
    y = torch.zeros_like(x, memory_format=torch.contiguous_format)
    _conv1d.run(call, x.reshape(-1, x.shape[-1]), y.view(-1, x.shape[-1]))
    return y


@npu_fused_causal_conv1d.check
def _(**arguments):
    _conv1d.check(_conv1d.given(arguments), arguments["max_query_len"])


@npu_fused_causal_conv1d.meta
def _(x):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@npu_op(
    f"npu_fused_causal_conv1d_v2(Tensor(a!) x, Tensor weight, Tensor(b!) conv_states, {_OPTIONS})"
    " -> ()",
    ge="InplaceFusedCausalConv1d",
)
def npu_fused_causal_conv1d_v2(**arguments):
    r"""`npu_fused_causal_conv1d` in place: the result is written to `x`.

    Args:
        x: as in `npu_fused_causal_conv1d`; holds the result afterwards. A skipped sequence stays as
            it is.
        weight: as there.
        conv_states: as there.
        query_start_loc: as there.
        cache_indices: as there.
        initial_state_mode: not used by upstream.
        bias: not used by upstream.
        num_accepted_tokens: as there.
        activation: not used by upstream.
        pad_slot_id: as there.
        run_mode: not used by upstream.
        residual_connection: as there.
        max_query_len: as there.
        num_computed_tokens: as there.
        block_idx_first_scheduled_token: as there.
        block_idx_last_scheduled_token: as there.
        initial_state_idx: as there.
        block_size: as there.
        conv_mode: as there.
    """
    call = _conv1d.given(arguments)
    x = call["x"]
    flat = x.reshape(-1, x.shape[-1])
    y = flat.clone()
    _conv1d.run(call, flat, y)
    x.copy_(y.view(x.shape))


@npu_fused_causal_conv1d_v2.check
def _(**arguments):
    _conv1d.check(_conv1d.given(arguments), arguments["max_query_len"])


@npu_fused_causal_conv1d_v2.meta
def _():
    return None


def _integers(make, *values):
    return torch.tensor(values, dtype=torch.int32).to(make(1).device)


def _prompt(make):
    half = torch.float16
    return make(7, 64, dtype=half), make(3, 64, dtype=half), make(4, 2, 64, dtype=half)


def _decode(make):
    half = torch.float16
    return make(2, 3, 64, dtype=half), make(3, 64, dtype=half), make(4, 4, 64, dtype=half)


npu_fused_causal_conv1d.samples = npu_fused_causal_conv1d_v2.samples = [
    Sample(
        _prompt,
        lambda make: {
            "query_start_loc": _integers(make, 0, 4, 7),
            "cache_indices": _integers(make, 2, 0),
            "num_computed_tokens": _integers(make, 0, 5),
            "residual_connection": 1,
        },
    ),
    Sample(
        _decode,
        lambda make: {
            "cache_indices": _integers(make, 3, 1),
            "num_accepted_tokens": _integers(make, 2, 1),
            "num_computed_tokens": _integers(make, 9, 1),
            "conv_mode": "pangu",
        },
    ),
]
