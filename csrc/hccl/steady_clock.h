// Milliseconds of the steady clock, which signal handlers may read too.
#pragma once

#include <chrono>
#include <cstdint>

namespace softnpu::hccl {

inline int64_t now_ms() {
  using std::chrono::milliseconds, std::chrono::steady_clock;
  return std::chrono::duration_cast<milliseconds>(steady_clock::now().time_since_epoch()).count();
}

}  // namespace softnpu::hccl
