// The private formats of storages (FRACTAL_NZ and the like): a tag and sizes kept beside a storage.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace softnpu {

void bind_format(pybind11::module& m);

}  // namespace softnpu
