// The hooks of a launch, and Python's access to them.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace softnpu {

void raise_fault(int device);  // what an injected fault makes a launch raise, if there is one

void bind_hooks(pybind11::module& m);

}  // namespace softnpu
