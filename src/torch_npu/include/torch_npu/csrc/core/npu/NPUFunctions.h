// Devices: c10_npu::device_count, current_device, set_device and their kin.
#pragma once

#include <ATen/Context.h>

#include "torch_npu/csrc/core/npu/NPUException.h"

namespace c10_npu {

inline c10::DeviceIndex device_count() noexcept { return softnpu_headers::guard().deviceCount(); }
inline c10::DeviceIndex current_device() { return softnpu_headers::guard().getDevice().index(); }
inline void set_device(c10::DeviceIndex device) { NPU_CHECK_ERROR(aclrtSetDevice(device)); }
inline void device_synchronize() { NPU_CHECK_ERROR(aclrtSynchronizeDevice()); }
inline void stream_synchronize(aclrtStream stream) { NPU_CHECK_ERROR(aclrtSynchronizeStream(stream)); }
inline aclError GetDevice(int32_t* device) { return aclrtGetDevice(device); }
inline aclError GetDevice(c10::DeviceIndex* device) {
  int32_t index = -1;
  const aclError code = aclrtGetDevice(&index);
  if (code == ACL_SUCCESS) *device = static_cast<c10::DeviceIndex>(index);
  return code;
}
inline aclError SetDevice(c10::DeviceIndex device) { return aclrtSetDevice(device); }

enum class SyncDebugMode { L_DISABLED = 0, L_WARN, L_ERROR };

class WarningState {
 public:
  void set_sync_debug_mode(SyncDebugMode mode) { mode_ = mode; }
  SyncDebugMode get_sync_debug_mode() const { return mode_; }

 private:
  SyncDebugMode mode_ = SyncDebugMode::L_DISABLED;
};

// Of the extension that asks; torch.npu.set_sync_debug_mode sets the process's.
inline WarningState& warning_state() {
  static WarningState state;
  return state;
}

inline void warn_or_error_on_sync() {
  switch (warning_state().get_sync_debug_mode()) {
    case SyncDebugMode::L_ERROR:
      TORCH_CHECK(false, "called a synchronizing NPU operation");
    case SyncDebugMode::L_WARN:
      TORCH_WARN("called a synchronizing NPU operation");
      break;
    default:
      break;
  }
}

}  // namespace c10_npu

namespace c10::npu {

inline c10::DeviceIndex current_device() { return c10_npu::current_device(); }
inline void set_device(c10::DeviceIndex device) { c10_npu::set_device(device); }
inline c10::DeviceIndex device_count() noexcept { return c10_npu::device_count(); }

}  // namespace c10::npu

namespace torch::npu {

inline c10::DeviceIndex device_count() { return c10_npu::device_count(); }

inline void synchronize(int64_t device = -1) {
  const auto index = device < 0 ? c10_npu::current_device() : static_cast<c10::DeviceIndex>(device);
  softnpu_headers::guard().synchronizeDevice(index);
}

}  // namespace torch::npu
