// Formats of npu tensors: ask for one, change it, allocate in it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>

#include <optional>
#include <vector>

#include "third_party/acl/inc/acl/acl_base.h"

namespace at_npu::native {

inline int64_t get_npu_format(const at::Tensor& self) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("npu::get_npu_format", "");
  return op.typed<int64_t(const at::Tensor&)>().call(self);
}

// The size of the storage in elements, with the padding of the tensor's format.
inline std::vector<int64_t> get_npu_storage_sizes(const at::Tensor& self) {
  return {static_cast<int64_t>(self.storage().nbytes() / self.itemsize())};
}

inline at::Tensor npu_format_cast(const at::Tensor& self, int64_t acl_format,
                                  std::optional<int64_t> customize_dtype = std::nullopt) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("npu::npu_format_cast", "");
  torch::jit::Stack stack{self, acl_format, customize_dtype};
  while (stack.size() < op.schema().arguments().size()) {
    stack.push_back(op.schema().arguments()[stack.size()].default_value().value_or(c10::IValue()));
  }
  op.callBoxed(&stack);
  return stack.front().toTensor();
}

inline at::Tensor empty_with_format(c10::IntArrayRef sizes, const c10::TensorOptions& options, int64_t format,
                                    bool /*keep_format*/ = false) {
  return npu_format_cast(at::empty(sizes, options.device(c10::DeviceType::PrivateUse1)), format);
}

}  // namespace at_npu::native
