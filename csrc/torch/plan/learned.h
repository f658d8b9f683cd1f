// What CPU kernels allocate inside, learned from one run on zeros in the host's memory and repeated from the device's.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace softnpu::plan {

// Runs a kernel whose temporaries no table tells (convolutions, sorts, ...): allocates and frees as it does, and leaves
// its results on the stack. Whether it could: the operator is one of these, and its tensors are small enough to try.
bool answer_learned(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace softnpu::plan
