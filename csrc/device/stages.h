// The stages of a launch that somebody asked for, in one word: a launch for which nobody asked anything tests it once.
#pragma once

#include <atomic>
#include <cstdint>

namespace softnpu {

// In the order in which a launch passes them (torch/dispatch/launch.cpp).
enum Stage : uint32_t {
  kFaultStage = 1u << 0,     // an injected fault raises, or makes a product wrong
  kUpdateStage = 1u << 1,    // a task group of a graph gets new arguments
  kQueueStage = 1u << 2,     // some stream is blocked: what is launched on it waits
  kCaptureStage = 1u << 3,   // some stream is being captured
  kUnsafeStage = 1u << 4,    // arguments whose bytes were lost in a fault raise
  kObserveStage = 1u << 5,   // dumps look at arguments and results
  kRoundStage = 1u << 6,     // products round their fp32 arguments (HF32)
  kSaturateStage = 1u << 7,  // results that overflow become the largest finite number
  kTraceStage = 1u << 8,     // the profiler's records
  kSanitizeStage = 1u << 9,  // races: who reads and writes what, in which order
  kPlanStage = 1u << 10,     // shapes alone: nothing is computed (torch/plan)
};
inline constexpr uint32_t kHookStages = kUnsafeStage | kObserveStage | kRoundStage | kSaturateStage | kFaultStage;

// Set while a kernel of ours runs for its shapes alone: it allocates, and leaves out its loops over data.
constinit inline thread_local bool leaves_data = false;

class Stages {
 public:
  static uint32_t asked() noexcept { return word_.load(std::memory_order_acquire); }
  static bool asked(uint32_t stages) noexcept { return (asked() & stages) != 0; }
  static void set(Stage stage, bool on) noexcept {
    if (on) {
      word_.fetch_or(stage);
    } else {
      word_.fetch_and(~static_cast<uint32_t>(stage));
    }
  }

 private:
  static inline std::atomic<uint32_t> word_{0};
};

}  // namespace softnpu
