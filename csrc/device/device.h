// The devices of this process: how many, their memory, which one a thread uses, and whether they have started.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "device/memory.h"
#include "device/stream.h"

namespace softnpu {

class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Device {
  Device(int index, size_t capacity) : memory(index, capacity), streams(index) {}
  CachingAllocator memory;
  Streams streams;
};

// Fixed before the first use; count 0 means that there is no device.
void configure_devices(int count, size_t memory);
int device_count() noexcept;
Device& device(int index);  // throws DeviceError for an index that does not exist

int current_device() noexcept;            // of the calling thread
void set_current_device(int index);       // throws DeviceError for an index that does not exist
int exchange_device(int index) noexcept;  // unchecked; returns the one before

// The first touch of a device runs `on_start` once (the banner) and fails in a forked child of a started process.
extern std::function<void()>& on_start;  // never destroyed: it may hold an interpreter's object
void ensure_started();
bool started() noexcept;
bool in_forked_child() noexcept;

}  // namespace softnpu
