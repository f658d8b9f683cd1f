// Python's access to device memory: statistics, snapshots, settings, pools.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace softnpu {

void bind_memory(pybind11::module& m);

}  // namespace softnpu
