// Operators whose kernel is written in Python: the kernel (python_kernel.cpp) and what is above it
// (python_autograd.cpp).
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace softnpu {

void bind_python_kernel(pybind11::module& m);
void bind_python_autograd(pybind11::module& m);

}  // namespace softnpu
