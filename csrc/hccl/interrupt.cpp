#include "hccl/interrupt.h"

#include <pybind11/pybind11.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace softnpu::hccl {

bool runs_signal_handlers() { return syscall(SYS_gettid) == getpid() && Py_IsInitialized() != 0; }

void run_signal_handlers() {
  if (!runs_signal_handlers()) return;
  const pybind11::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
}

}  // namespace softnpu::hccl
