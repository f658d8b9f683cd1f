#include "hccl/interrupt.h"

#include <pybind11/pybind11.h>
#include <sys/syscall.h>
#include <torch/csrc/autograd/graph_task.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <mutex>

#include "hccl/steady_clock.h"

namespace softnpu::hccl {

namespace {

using Handler = void (*)(int);

constexpr int64_t kMoment = 500;  // ms that the interpreter has to run the handler itself

std::atomic<Handler> pythons{nullptr};
std::atomic<int64_t> arrived{0};  // when, in ms of the steady clock; 0: the handler has run
static_assert(std::atomic<int64_t>::is_always_lock_free && std::atomic<Handler>::is_always_lock_free);

// In front of Python's own, which notes that its handler has to run.
void note(int number) {
  arrived = now_ms();
  if (const Handler next = pythons) next(number);
}

// Called by the interpreter, on the thread of the handlers, right after it has run them.
int has_run(void*) {
  arrived = 0;
  return 0;
}

}  // namespace

bool runs_signal_handlers() { return syscall(SYS_gettid) == getpid() && Py_IsInitialized() != 0; }

void run_signal_handlers() {
  if (!runs_signal_handlers()) return;
  const pybind11::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
}

bool in_backward() { return torch::autograd::get_current_graph_task_id() >= 0 && !runs_signal_handlers(); }

void notice_interrupts() {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  struct sigaction action = {};
  if (sigaction(SIGINT, nullptr, &action) != 0 || (action.sa_flags & SA_SIGINFO) != 0) return;
  const Handler found = action.sa_handler;
  if (found == note || found == SIG_DFL || found == SIG_IGN) return;
  pythons = found;
  action.sa_handler = note;
  sigaction(SIGINT, &action, nullptr);
}

bool interrupted_in_backward() {
  static std::atomic<int64_t> asked{0};
  const int64_t when = arrived;
  if (when == 0 || Py_IsInitialized() == 0) return false;
  if (asked.exchange(when) != when) Py_AddPendingCall(has_run, nullptr);
  if (now_ms() < when + kMoment) return false;
  const pybind11::gil_scoped_acquire gil;
  const auto signals = pybind11::module_::import("signal");
  return signals.attr("getsignal")(SIGINT).is(signals.attr("default_int_handler")) && arrived == when;
}

}  // namespace softnpu::hccl
