// Guards of the current device and stream.
#pragma once

#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>

#include <optional>

#include "torch_npu/csrc/core/npu/NPUStream.h"

namespace c10_npu {

struct NPUGuard {
  explicit NPUGuard(c10::DeviceIndex index) : guard_(c10::Device(c10::DeviceType::PrivateUse1, index)) {}
  explicit NPUGuard(c10::Device device) : guard_(device) {}
  NPUGuard(const NPUGuard&) = delete;
  NPUGuard& operator=(const NPUGuard&) = delete;

  void set_device(c10::Device device) { guard_.reset_device(device); }
  void reset_device(c10::Device device) { guard_.reset_device(device); }
  void set_index(c10::DeviceIndex index) { guard_.set_index(index); }
  c10::Device original_device() const { return guard_.original_device(); }
  c10::Device current_device() const { return guard_.current_device(); }

 private:
  c10::DeviceGuard guard_;
};

struct OptionalNPUGuard {
  OptionalNPUGuard() = default;
  explicit OptionalNPUGuard(std::optional<c10::Device> device) : guard_(device) {}
  explicit OptionalNPUGuard(c10::DeviceIndex index) : guard_(c10::Device(c10::DeviceType::PrivateUse1, index)) {}
  OptionalNPUGuard(const OptionalNPUGuard&) = delete;
  OptionalNPUGuard& operator=(const OptionalNPUGuard&) = delete;

  void set_device(c10::Device device) { guard_.reset_device(device); }
  void reset_device(c10::Device device) { guard_.reset_device(device); }
  std::optional<c10::Device> original_device() const { return guard_.original_device(); }
  std::optional<c10::Device> current_device() const { return guard_.current_device(); }

 private:
  c10::OptionalDeviceGuard guard_;
};

struct NPUStreamGuard {
  explicit NPUStreamGuard(c10::Stream stream) : guard_(stream) {}
  NPUStreamGuard(const NPUStreamGuard&) = delete;
  NPUStreamGuard& operator=(const NPUStreamGuard&) = delete;

  void reset_stream(c10::Stream stream) { guard_.reset_stream(stream); }
  NPUStream original_stream() const { return NPUStream(guard_.original_stream()); }
  NPUStream current_stream() const { return NPUStream(guard_.current_stream()); }
  c10::Device current_device() const { return guard_.current_device(); }
  c10::Device original_device() const { return guard_.original_device(); }

 private:
  c10::StreamGuard guard_;
};

struct OptionalNPUStreamGuard {
  OptionalNPUStreamGuard() = default;
  explicit OptionalNPUStreamGuard(c10::Stream stream) : guard_(stream) {}
  OptionalNPUStreamGuard(const OptionalNPUStreamGuard&) = delete;
  OptionalNPUStreamGuard& operator=(const OptionalNPUStreamGuard&) = delete;

  void reset_stream(c10::Stream stream) { guard_.reset_stream(stream); }
  void reset() { guard_.reset(); }

 private:
  c10::OptionalStreamGuard guard_;
};

}  // namespace c10_npu
