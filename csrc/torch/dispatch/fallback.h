// Every ATen operator with a CPU kernel, on the npu device: one boxed kernel, registered for all of them.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace softnpu {

// Runs the operator's CPU kernel on the NPU tensors at the end of the stack.
void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack);

void register_fallbacks();  // once, after PyTorch's operators are known

}  // namespace softnpu
