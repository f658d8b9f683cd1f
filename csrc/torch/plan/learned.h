// What CPU kernels allocate inside, learned from one run on ones (integers: zeros) in the host's memory, and repeated
// from the device's.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace softnpu::plan {

// Allocates and frees as the kernel does, and leaves its results on the stack. Whether it could: its tensors are small
// enough to try, larger ones where temporaries are large (convolutions, sorts, ...).
bool answer_learned(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace softnpu::plan
