// The frame of a kernel written by hand: device check, CPU aliases in, results out.
#pragma once

#include "torch/dispatch/cpu_alias.h"
#include "torch/dispatch/kernel_frame.h"
#include "torch/dispatch/launch.h"

namespace softnpu {

class NativeKernel {
 public:
  NativeKernel(std::string_view op, std::initializer_list<const at::Tensor*> tensors)
      : aliases_(resolved(op, tensors)), frame_(aliases_.device()) {}

  at::Tensor in(const at::Tensor& tensor) { return tensor.defined() ? aliases_.in(tensor, false) : tensor; }
  at::Tensor in(const std::optional<at::Tensor>& tensor) { return tensor.has_value() ? in(*tensor) : at::Tensor(); }
  at::Tensor out(at::Tensor result) { return aliases_.out(std::move(result)); }
  int device() const { return aliases_.device(); }

 private:
  static CpuAliases resolved(std::string_view op, std::initializer_list<const at::Tensor*> tensors) {
    CpuAliases aliases(op);
    for (const at::Tensor* tensor : tensors) aliases.see(*tensor, false, false);
    aliases.resolve_device();
    return aliases;
  }
  CpuAliases aliases_;
  KernelFrame frame_;
};

}  // namespace softnpu
