// Python's access to the rest of what torch.npu needs.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace softnpu {

void bind_runtime(pybind11::module& m);

}  // namespace softnpu
