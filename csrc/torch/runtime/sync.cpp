#include "torch/runtime/sync.h"

#include <c10/util/Exception.h>

#include <atomic>

#include "torch/graph/capture.h"

namespace softnpu {

namespace {
std::atomic<int> debug_mode{0};
}

void set_sync_debug_mode(int mode) { debug_mode = mode; }
int sync_debug_mode() { return debug_mode; }

void note_synchronization(const char* what) {
  const auto mode = static_cast<SyncDebugMode>(debug_mode.load(std::memory_order_relaxed));
  if (mode == SyncDebugMode::Default) return;
  TORCH_CHECK(mode != SyncDebugMode::Error, "called a synchronizing NPU operation: ", what);
  TORCH_WARN("called a synchronizing NPU operation: ", what);
}

namespace {

template <class Wait>
void wait_or_explain(const char* what, Wait wait) {
  try {
    wait();
  } catch (const DeadLock& lock) {
    TORCH_CHECK(false, what, " would never return: ", lock.what(),
                ", and nobody is left to give it. Record the event (ExternalEvent.record) before waiting on the host; "
                "an NPU would hang here.");
  }
}

}  // namespace

void wait_for_stream(int device, int64_t stream, const char* what) {
  if (Capture::any()) Capture::forbid_stream_wait(device, stream, what);
  if (Queues::any() && !draining()) {
    wait_or_explain(what, [&] { Queues::all().wait_for_stream(device, stream); });
  }
  if (sanitizer::on()) sanitizer::Sanitizer::get().host_waits(device, stream);
}

void wait_for_device(int device, const char* what) {
  if (Capture::any()) Capture::forbid_device_wait(what);
  if (Queues::any() && !draining()) wait_or_explain(what, [&] { Queues::all().wait_for_device(device); });
  if (sanitizer::on()) sanitizer::Sanitizer::get().host_waits_for_device(device);
}

void wait_for_event(const Event& event, const char* what) {
  if (Capture* capture = Capture::of_event(event)) {
    const std::string text = std::string(what) + ": the event was recorded in a capture, which computes nothing yet.";
    capture->fail(acl::kEventCaptured, text);
    raise_acl(what, acl::kEventCaptured, text);
  }
  if (!event.complete()) wait_or_explain(what, [&] { Queues::all().wait_for(event.pending, what); });
  if (sanitizer::on()) sanitizer::Sanitizer::get().host_waits(event.order);
}

}  // namespace softnpu
