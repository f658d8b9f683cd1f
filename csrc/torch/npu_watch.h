// Python's access to watched launches (npu_watch.cpp) and to the rest of the runtime (npu_runtime.cpp).
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace softnpu {

void bind_watch(pybind11::module& m);
void bind_runtime(pybind11::module& m);

}  // namespace softnpu
