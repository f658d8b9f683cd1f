// What extensions use of torch_npu's own Python module.
#pragma once

#include "torch_npu/csrc/core/npu/NPUFunctions.h"
#include "torch_npu/csrc/core/npu/NPUMacros.h"

#define CHANGE_UNIT_SIZE 1024.0  // from bytes to KiB, from KiB to MiB

inline void THNPModule_setDevice(int index) { c10_npu::set_device(static_cast<c10::DeviceIndex>(index)); }
