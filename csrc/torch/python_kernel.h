// Operators whose kernel is written in Python.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace softnpu {

void bind_python_kernel(pybind11::module& m);

}  // namespace softnpu
