// Layer normalization of half precision: mean, rstd and what is made of the weights are fp32 on the card, whereas
// PyTorch's CPU kernels round them to the dtype of the input unless the weight is fp32.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace softnpu {

// Whether the argument `input` of the call at the end of the stack is of half precision.
bool half_input(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

// Runs native_layer_norm or its gradient on host tensors with fp32 copies of weight, bias and statistics. Gradients of
// the weights have the dtype of the weights.
void call_layer_norm(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace softnpu
