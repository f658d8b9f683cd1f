"""The short convolution before linear attention, `_C_ascend`."""

from __future__ import annotations

import torch

from softnpu.contrib.kernels.conv import check_convolution, convolution
from softnpu.contrib.vllm_ascend._define import ascend_op
from torch_npu.ops import _check as must

__all__ = ["npu_causal_conv1d_310", "npu_causal_conv1d_custom"]


@ascend_op(
    "npu_causal_conv1d_custom(Tensor output, Tensor x, Tensor weight, Tensor conv_state, "
    "Tensor? bias_opt, Tensor? query_start_loc_opt, Tensor? cache_indices_opt, "
    "Tensor? initial_state_mode_opt, Tensor? num_accepted_tokens_opt, int activation_mode, "
    "int pad_slot_id, int run_mode) -> Tensor output"
)
def npu_causal_conv1d_custom(
    output,
    x,
    weight,
    conv_state,
    bias_opt,
    query_start_loc_opt,
    cache_indices_opt,
    initial_state_mode_opt,
    num_accepted_tokens_opt,
    activation_mode,
    pad_slot_id,
    run_mode,
):
    """The causal convolution of each channel over cached tokens; `output` and `conv_state` are written."""
    convolution(
        output, x, weight, conv_state, bias_opt, query_start_loc_opt, cache_indices_opt,
        initial_state_mode_opt, num_accepted_tokens_opt, activation_mode, pad_slot_id, run_mode,
    )  # fmt: skip
    return output


@npu_causal_conv1d_custom.meta
def _(output):
    return output


@npu_causal_conv1d_custom.check
def _(output, x, weight, conv_state, bias_opt, activation_mode, pad_slot_id, run_mode, **rest):
    must.anything(pad_slot_id)
    must.same_dtype("output", output, "x", x)
    must.shape("output", output, tuple(x.shape))
    must.hold(output.is_contiguous(), "output", "contiguous", output.stride())
    names = ("query_start_loc_opt", "cache_indices_opt", "initial_state_mode_opt")
    named = [(name, rest[name]) for name in (*names, "num_accepted_tokens_opt")]
    check_convolution(
        x, weight, ("conv_state", conv_state), ("bias_opt", bias_opt), named,
        (activation_mode, run_mode),
    )  # fmt: skip


@ascend_op(
    "npu_causal_conv1d_310(Tensor x, Tensor weight, Tensor? bias, Tensor conv_states, "
    "Tensor? query_start_loc, Tensor? cache_indices, Tensor? initial_state_mode, "
    "Tensor? num_accepted_tokens, int activation_mode, int pad_slot_id, int run_mode) "
    "-> Tensor output"
)
def npu_causal_conv1d_310(
    x,
    weight,
    bias,
    conv_states,
    query_start_loc,
    cache_indices,
    initial_state_mode,
    num_accepted_tokens,
    activation_mode,
    pad_slot_id,
    run_mode,
):
    """`npu_causal_conv1d_custom` with a result of its own; `conv_states` is written."""
    y = torch.zeros_like(x, memory_format=torch.contiguous_format)
    convolution(
        y, x, weight, conv_states, bias, query_start_loc, cache_indices, initial_state_mode,
        num_accepted_tokens, activation_mode, pad_slot_id, run_mode,
    )  # fmt: skip
    return y


@npu_causal_conv1d_310.meta
def _(x):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@npu_causal_conv1d_310.check
def _(x, weight, bias, conv_states, activation_mode, pad_slot_id, run_mode, **rest):
    must.anything(pad_slot_id)
    names = ("query_start_loc", "cache_indices", "initial_state_mode", "num_accepted_tokens")
    check_convolution(
        x, weight, ("conv_states", conv_states), ("bias", bias),
        [(name, rest[name]) for name in names], (activation_mode, run_mode),
    )  # fmt: skip
