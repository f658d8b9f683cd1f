// What CPU kernels allocate besides their results.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

namespace softnpu::plan {

// The temporaries of a call, allocated while one lives.
class Workspace {
 public:
  Workspace(const c10::OperatorHandle& op, const torch::jit::Stack& given, const torch::jit::Stack& results);
  Workspace(const Workspace&) = delete;

 private:
  void promote(const c10::OperatorHandle& op, const torch::jit::Stack& given);
  c10::SmallVector<at::Tensor, 4> held_;
};

}  // namespace softnpu::plan
