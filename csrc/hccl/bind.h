// The Python face of the hccl backend.
#pragma once

#include <pybind11/pybind11.h>

namespace softnpu::hccl {

void bind(pybind11::module_& parent);

}  // namespace softnpu::hccl
