// Signals that Python handles (Ctrl-C), while a thread waits in C++.
#pragma once

namespace softnpu::hccl {

// Whether this thread runs the handlers: the first one of the process.
bool runs_signal_handlers();

// Runs the handlers of the signals that have arrived. What they raise is thrown, e.g. KeyboardInterrupt.
void run_signal_handlers();

}  // namespace softnpu::hccl
