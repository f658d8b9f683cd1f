#include "device/stream.h"

#include <array>

#include "device/clock.h"

namespace softnpu {

namespace {
constexpr size_t kMostDevices = 64;
thread_local std::array<StreamId, kMostDevices> thread_streams{};
}  // namespace

StreamId Streams::next(bool high_priority) {
  std::atomic<uint32_t>& counter = high_priority ? high_ : normal_;
  const StreamId index = counter++ % kStreamsPerPriority;
  return 1 + index + (high_priority ? kStreamsPerPriority : 0);
}

StreamId current_stream(int device) noexcept { return thread_streams[static_cast<size_t>(device) % kMostDevices]; }

StreamId exchange_stream(int device, StreamId stream) noexcept {
  StreamId& slot = thread_streams[static_cast<size_t>(device) % kMostDevices];
  const StreamId before = slot;
  slot = stream;
  return before;
}

void record_event(Event& event, int device, StreamId stream, bool timed) {
  event.device = device;
  event.stream = stream;
  event.timed = timed;
  event.recorded = true;
  event.time_ns = device_clock_ns();
}

}  // namespace softnpu
