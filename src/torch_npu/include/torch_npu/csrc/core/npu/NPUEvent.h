// c10_npu::NPUEvent: a mark on a stream; made when it is first recorded.
#pragma once

#include <c10/core/Event.h>

#include <optional>
#include <utility>

#include "torch_npu/csrc/core/npu/NPUStream.h"

namespace c10_npu {

struct NPUEvent {
  NPUEvent() : NPUEvent(0) {}
  explicit NPUEvent(unsigned int flags)
      : timed_(flags != 0),
        event_(c10::DeviceType::PrivateUse1,
               timed_ ? c10::EventFlag::BACKEND_DEFAULT : c10::EventFlag::PYTORCH_DEFAULT) {}

  NPUEvent(const NPUEvent&) = delete;
  NPUEvent& operator=(const NPUEvent&) = delete;
  NPUEvent(NPUEvent&&) = default;
  NPUEvent& operator=(NPUEvent&&) = default;

  bool isCreated() const { return event_.was_marked_for_recording(); }
  c10::DeviceIndex device_index() const { return event_.device_index(); }
  std::optional<c10::Device> device() const {
    if (!isCreated()) return std::nullopt;
    return c10::Device(c10::DeviceType::PrivateUse1, device_index());
  }
  aclrtEvent event() const { return event_.eventId(); }
  operator aclrtEvent() const { return event(); }

  bool query() const { return event_.query(); }
  void record() { record(getCurrentNPUStream()); }
  void record(const NPUStream& stream) { event_.record(stream.unwrap()); }
  void recordOnce(const NPUStream& stream) {
    if (!isCreated()) record(stream);
  }
  void block(const NPUStream& stream) {
    if (isCreated()) event_.block(stream.unwrap());
  }
  void synchronize() const {
    if (isCreated()) event_.synchronize();
  }
  // Milliseconds from this event to the other one; both must be made with a flag other than 0.
  float elapsed_time(const NPUEvent& other) const {
    TORCH_CHECK(timed_ && other.timed_, "NPUEvent::elapsed_time: expected events with timing");
    return static_cast<float>(event_.elapsedTime(other.event_));
  }

 private:
  bool timed_;
  c10::Event event_;
};

}  // namespace c10_npu
