// Signals that Python handles (Ctrl-C), while a thread waits in C++.
#pragma once

namespace softnpu::hccl {

// Whether this thread runs the handlers: the first one of the process.
bool runs_signal_handlers();

// Runs the handlers of the signals that have arrived. What they raise is thrown, e.g. KeyboardInterrupt.
void run_signal_handlers();

// In a backward pass a thread of autograd waits for the operation, and the thread that runs the handlers waits inside
// PyTorch for that one, so that nobody runs them. From this call on, Ctrl-C is noticed when it arrives.
bool in_backward();
void notice_interrupts();

// Whether Ctrl-C arrived a moment ago, nobody has run its handler since, and the handler is the one that raises
// KeyboardInterrupt. What another handler does is not known.
bool interrupted_in_backward();

}  // namespace softnpu::hccl
