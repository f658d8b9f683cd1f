#include "torch/sync.h"

#include <c10/util/Exception.h>

#include <atomic>

namespace softnpu {

namespace {
std::atomic<int> debug_mode{0};
}

void set_sync_debug_mode(int mode) { debug_mode = mode; }
int sync_debug_mode() { return debug_mode; }

void note_synchronisation(const char* what) {
  const auto mode = static_cast<SyncDebugMode>(debug_mode.load(std::memory_order_relaxed));
  if (mode == SyncDebugMode::Default) return;
  TORCH_CHECK(mode != SyncDebugMode::Error, "called a synchronizing NPU operation: ", what);
  TORCH_WARN("called a synchronizing NPU operation: ", what);
}

}  // namespace softnpu
