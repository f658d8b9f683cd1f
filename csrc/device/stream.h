// Streams and events. Work runs at once on the calling thread, so a stream is always drained and an event is
// complete as soon as it is recorded; what remains is identity, order on the timeline, and time stamps.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "device/memory.h"

namespace softnpu {

constexpr int kStreamsPerPriority = 32;
constexpr StreamId kDefaultStream = 0;

class Streams {
 public:
  explicit Streams(int device) : device_(device) {}
  StreamId next(bool high_priority);  // round robin over the pool, as on the card
  static bool high_priority(StreamId id) { return id > kStreamsPerPriority; }
  static bool valid(StreamId id) { return id >= 0 && id <= 2 * kStreamsPerPriority; }

 private:
  [[maybe_unused]] const int device_;
  std::atomic<uint32_t> normal_{0}, high_{0};
};

// The calling thread's current stream of a device.
StreamId current_stream(int device) noexcept;
StreamId exchange_stream(int device, StreamId stream) noexcept;  // returns the one before

struct Event {
  int device = -1;
  StreamId stream = kDefaultStream;
  bool timed = false;
  bool recorded = false;
  int64_t time_ns = 0;
};

void record_event(Event& event, int device, StreamId stream, bool timed);

}  // namespace softnpu
