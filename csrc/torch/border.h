// The border between the npu device and PyTorch's CPU kernels, crossed without copying a byte.
//
// Going in, an NPU tensor becomes a CPU TensorImpl on the *same* StorageImpl, so a kernel that resizes or views its
// argument works on the NPU tensor's own storage. Coming out, a CPU result whose bytes were drawn from the device
// (see KernelScope) is retagged in place as an NPU tensor. Mutable arguments get their new sizes written back.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include "torch/allocator.h"

namespace softnpu {

inline bool on_npu(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == c10::kPrivateUse1;
}

// One operator call across the border.
class Border {
 public:
  explicit Border(std::string_view op) : op_(op) {}

  // Finds the device of the call; raises PyTorch's "same device" error on a mixture.
  // `host_ok`: a CPU tensor of any shape may accompany (index tensors and the like).
  void see(const at::Tensor& tensor, bool is_mutable, bool host_ok);
  void see(c10::Device device);
  void settle();  // after the last see(): checks, and falls back to the current device
  int device() const { return device_; }
  c10::Device npu() const { return {c10::kPrivateUse1, static_cast<c10::DeviceIndex>(device_)}; }
  bool sparse() const { return sparse_; }

  at::Tensor in(const at::Tensor& tensor, bool is_mutable);
  // `owned`: nobody else keeps the result, even if references to it are still alive (a Python kernel's).
  at::Tensor out(at::Tensor result, bool owned = false);
  void write_back();  // sizes, strides and storage of mutable arguments that the kernel changed

 private:
  struct Crossing {
    at::Tensor npu, alias;
    bool is_mutable;
  };
  at::Tensor in_sparse(const at::Tensor& tensor);
  at::Tensor out_sparse(const at::Tensor& result);
  [[noreturn]] void mixed(c10::Device other) const;

  std::string_view op_;
  int device_ = -1;
  bool sparse_ = false, host_tensor_ = false, from_tensor_ = false;
  c10::SmallVector<Crossing, 6> crossings_;
};

// A CPU tensor on the bytes of a strided NPU tensor, for kernels written by hand.
at::Tensor cpu_alias(const at::Tensor& npu);
// A strided CPU tensor whose bytes came from the device (or are copied there), as an NPU tensor.
at::Tensor npu_adopt(at::Tensor cpu, c10::Device npu, bool owned = false);

}  // namespace softnpu
