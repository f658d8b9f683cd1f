// The device's time: nanoseconds of the host's steady clock, shared by events, tasks and the trace.
#pragma once

#include <cstdint>

namespace softnpu {

int64_t device_clock_ns();  // monotonic; what events and tasks carry
int64_t wall_clock_ns();    // since the epoch; what files carry

}  // namespace softnpu
