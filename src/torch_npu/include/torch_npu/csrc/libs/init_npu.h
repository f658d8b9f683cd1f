// Start and end of the device for C++ programs.
#pragma once

#include <string>

#include "torch_npu/csrc/core/npu/NPUFunctions.h"

namespace torch_npu {

inline void init_npu(c10::DeviceIndex device = 0) { c10_npu::set_device(device); }
inline void init_npu(const at::Device& device) { c10_npu::set_device(device.index() < 0 ? 0 : device.index()); }
inline void init_npu(const std::string& device) { init_npu(at::Device(device)); }
inline void finalize_npu() { c10_npu::device_synchronize(); }

}  // namespace torch_npu
