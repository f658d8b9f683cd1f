// CPU aliases: NPU tensors for PyTorch's CPU kernels, without copying a byte.
//
// Going in, an NPU tensor becomes a CPU tensor whose storage (the alias storage) stands on the same bytes and keeps the
// NPU storage alive; arguments that share a storage share its alias. Coming out, a view of an alias storage becomes a
// view of the NPU storage, and a result whose bytes were drawn from the device (see KernelScope) is retagged in place.
// Mutable arguments get their new sizes, and their alias storage's bytes if it was resized, written back.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include "torch/memory/allocator.h"

namespace softnpu {

inline bool on_npu(const at::Tensor& tensor) { return tensor.defined() && tensor.device().type() == c10::kPrivateUse1; }

// Raises an error that names the operator if a strided tensor says more than its storage has: the storage was resized,
// or a direct call made the view. Kernels rely on it, so nothing passes to them that lies outside.
void check_inside(const at::Tensor& tensor, std::string_view op);

// The aliases of one operator call.
class CpuAliases {
 public:
  // `touches`: false for an operator that only describes memory, which may be too small for a tensor or released.
  explicit CpuAliases(std::string_view op, bool touches = true) : op_(op), touches_(touches) {}

  // Finds the device of the call; raises PyTorch's "same device" error on a mixture.
  // `host_ok`: a CPU tensor of any shape may accompany (index tensors and the like).
  void see(const at::Tensor& tensor, bool is_mutable, bool host_ok);
  void see(c10::Device device);
  void resolve_device();  // after the last see(): checks, and falls back to the current device
  bool involves_npu() const { return from_tensor_ || from_argument_; }
  int device() const { return device_; }
  c10::Device npu() const { return {c10::kPrivateUse1, static_cast<c10::DeviceIndex>(device_)}; }

  // `bump`: the kernel counts as one write for autograd (in-place operators on lists have no layer above that does it).
  at::Tensor in(const at::Tensor& tensor, bool is_mutable, bool bump = false);
  // `owned`: nobody else keeps the result, even if references to it are still alive (a Python kernel's).
  at::Tensor out(at::Tensor result, bool owned = false);
  void write_back();  // sizes, strides and storage of mutable arguments that the kernel changed

 private:
  struct Pair {
    at::Tensor npu, alias;
    bool is_mutable, bump;
  };
  c10::StorageImpl* npu_storage_of(const c10::StorageImpl* storage) const;
  at::Tensor alias(const at::Tensor& npu);
  at::Tensor adopt(at::Tensor cpu, bool owned);
  at::Tensor in_nested(const at::Tensor& tensor);
  at::Tensor out_nested(const at::Tensor& result);
  at::Tensor in_sparse(const at::Tensor& tensor);
  at::Tensor out_sparse(const at::Tensor& result);
  [[noreturn]] void mixed(c10::Device other) const;

  std::string_view op_;
  bool touches_;
  int device_ = -1;
  bool host_tensor_ = false, from_tensor_ = false, from_argument_ = false;
  c10::SmallVector<Pair, 6> pairs_;
  c10::SmallVector<std::pair<c10::StorageImpl*, c10::Storage>, 6> storages_;  // NPU storage -> CPU storage
};

// The storage whose bytes an alias storage keeps alive, or nullptr.
c10::StorageImpl* kept_by(const c10::StorageImpl& alias);
// Another storage on the same bytes, on the host or on an NPU.
c10::Storage alias_storage(c10::StorageImpl* of, c10::Device as, bool keep_alive);

// An NPU tensor on the bytes of a strided tensor of the host or of the NPU; it cannot be resized.
at::Tensor npu_view(const at::Tensor& tensor, c10::Device npu, bool keep_alive);

// A CPU tensor on the bytes of a strided NPU tensor, for kernels written by hand.
at::Tensor cpu_alias(const at::Tensor& npu);
// The same on the NPU tensor's own storage: for kernels that read and write elements and do nothing else.
at::Tensor element_alias(const at::Tensor& npu);
// What such a kernel made, its bytes drawn from the device, as a tensor of the NPU.
at::Tensor adopted(at::Tensor made, c10::Device npu);
// Whether a CPU tensor is an alias that keeps the NPU storage: cpu_alias or a CpuAliases made it.
bool is_alias(const at::Tensor& cpu);

}  // namespace softnpu
