// Whether a tensor is on an npu device.
#pragma once

#include <ATen/core/Tensor.h>

namespace torch_npu::utils {

inline bool is_npu(const at::Tensor& tensor) { return tensor.is_privateuseone(); }
inline bool is_npu(const at::TensorOptions& options) { return options.device().type() == c10::DeviceType::PrivateUse1; }
inline bool is_npu(const at::Device& device) { return device.type() == c10::DeviceType::PrivateUse1; }
inline c10::DeviceType get_npu_device_type() { return c10::DeviceType::PrivateUse1; }

}  // namespace torch_npu::utils
