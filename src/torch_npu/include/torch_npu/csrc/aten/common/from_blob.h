// A tensor on memory that the program holds.
#pragma once

#include <ATen/ops/from_blob.h>

namespace at_npu::native {

inline at::Tensor from_blob(void* data, c10::IntArrayRef sizes, const at::TensorOptions& options = {}) {
  const c10::Device npu(c10::DeviceType::PrivateUse1, 0);
  const c10::Device device = options.has_device() ? options.device() : npu;
  return at::for_blob(data, sizes).options(options.device(device)).target_device(device).make_tensor();
}

}  // namespace at_npu::native
