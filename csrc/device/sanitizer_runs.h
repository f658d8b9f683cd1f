// What the sanitizer's files on pinned memory share.
#pragma once

#include <atomic>
#include <cstdint>

namespace softnpu::sanitizer {

// Copies with pinned memory whose kernel runs at this moment: their pages must stay open. Guarded by the sanitizer's
// lock.
void begin_run(uint64_t step);  // on this thread
void end_runs();                // those of this thread
bool is_running(uint64_t step);

inline std::atomic<bool> any_closed{false};  // pages may be closed: the host's system calls must ask
void watch_system_calls();                   // of all libraries that are loaded by now (system_calls.cpp)

}  // namespace softnpu::sanitizer
