#include "device/device.h"

#include <pthread.h>

#include <atomic>
#include <mutex>
#include <string>

namespace softnpu {

std::function<void()>& on_start = *new std::function<void()>;

namespace {

std::vector<std::unique_ptr<Device>>& devices() {
  // Never destroyed: tensors held by the interpreter are freed after static destructors run.
  static auto* all = new std::vector<std::unique_ptr<Device>>;
  return *all;
}

std::atomic<bool> has_started{false};
std::atomic<bool> forked{false};
thread_local int thread_device = 0;

void after_fork_in_child() {
  if (has_started) forked = true;
}

}  // namespace

void configure_devices(int count, size_t memory) {
  if (has_started) throw DeviceError("the NPU devices have started and cannot be configured again");
  devices().clear();
  for (int i = 0; i < count; ++i) devices().push_back(std::make_unique<Device>(i, memory));
}

int device_count() noexcept { return static_cast<int>(devices().size()); }

Device& device(int index) {
  if (index < 0 || index >= device_count()) {
    throw DeviceError("invalid NPU device index " + std::to_string(index) + ": this process has " +
                      std::to_string(device_count()) + " NPU device(s)" +
                      (device_count() > 0 ? ", 0 to " + std::to_string(device_count() - 1) : std::string()) +
                      ". SOFTNPU_DEVICES and ASCEND_RT_VISIBLE_DEVICES set how many there are.");
  }
  return *devices()[static_cast<size_t>(index)];
}

int current_device() noexcept { return thread_device; }

void set_current_device(int index) {
  device(index);
  thread_device = index;
}

int exchange_device(int index) noexcept {
  const int before = thread_device;
  thread_device = index;
  return before;
}

bool started() noexcept { return has_started; }
bool in_forked_child() noexcept { return forked; }

void ensure_started() {
  if (has_started.load(std::memory_order_acquire) && !forked.load(std::memory_order_relaxed)) return;
  if (forked) {
    throw DeviceError(
        "Cannot re-initialize NPU in forked subprocess. To use NPU with multiprocessing, you must use the 'spawn' "
        "start method");
  }
  if (device_count() == 0) {
    throw DeviceError("no NPU device: SOFTNPU=0 (or ASCEND_RT_VISIBLE_DEVICES) leaves this process without one");
  }
  if (has_started.exchange(true)) return;
  pthread_atfork(nullptr, nullptr, after_fork_in_child);
  if (on_start) on_start();
}

}  // namespace softnpu
