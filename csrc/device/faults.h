// Faults on demand: what softnpu.faults injects and torch.npu's fault functions ask for. Nothing injected, nothing
// changes: `active()` is one relaxed load, and the floor above looks no further while it is false.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace softnpu {

struct MemoryFault {
  uintptr_t address;
  size_t size;
};

class Faults {
 public:
  static Faults& all();

  bool active() const noexcept { return active_.load(std::memory_order_relaxed); }

  void stop(int device);
  void restart(int device);  // ends a stop and repairs everything that a launch would raise
  void clear();              // clears everything, on every device

  void raise_at_launch(int device, std::string message);  // until restart
  void corrupt_memory(int device, MemoryFault fault);     // an uncorrectable error: raises at launch until restart
  std::vector<MemoryFault> memory_faults(int device);
  void keep_memory_faults(int device, std::vector<MemoryFault> left);

  void corrupt_products(int device, int64_t skip);  // after `skip` more products, one wrong bit in each
  bool product_is_corrupt(int device);
  void set_stress_result(int device, int kind, int result);  // kind 0: aic, 1: hccs
  int stress_result(int device, int kind);

  void fail_allocation(int device, int64_t nth);  // the n-th allocation from now on has no memory
  bool allocation_fails(int device);

  // What a launch on the device raises now, if anything.
  std::optional<std::string> at_launch(int device);

 private:
  struct State {
    bool stopped = false;
    std::string message;
    std::vector<MemoryFault> memory;
    std::optional<int64_t> product_countdown, allocation_countdown;
    int stress[2] = {0, 0};
    bool empty() const;
  };
  void note_active();

  std::mutex mutex_;
  std::map<int, State> states_;
  std::atomic<bool> active_{false};
};

}  // namespace softnpu
