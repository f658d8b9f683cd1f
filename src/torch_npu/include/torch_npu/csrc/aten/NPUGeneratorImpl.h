// at_npu::NPUGeneratorImpl: what operators of the program's own draw from a generator of an npu device.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <mutex>
#include <utility>

namespace at_npu {

// A view of the device's generator, for at::check_generator; it has no state of its own, and none is made.
class NPUGeneratorImpl : public c10::GeneratorImpl {
 public:
  NPUGeneratorImpl() = delete;
  static c10::DeviceType device_type() { return c10::DeviceType::PrivateUse1; }

  // The seed and the offset for `increment` counters, by which the offset advances.
  std::pair<uint64_t, uint64_t> philox_engine_inputs(uint64_t increment) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const uint64_t offset = get_offset();
    set_offset(offset + increment);
    return {current_seed(), offset};
  }
};

}  // namespace at_npu
