// The loops over data of our kernels. A run for shapes alone (device/stages.h) leaves them out: the kernel checks its
// arguments and allocates as always, and its results stay as they are.
#pragma once

#include <ATen/Parallel.h>

#include "device/stages.h"

namespace softnpu::kernels::inline CPU_CAPABILITY {

template <class Body>
inline void parallel_for(int64_t begin, int64_t end, int64_t grain, const Body& body) {
  if (leaves_data) [[unlikely]]
    return;
  at::parallel_for(begin, end, grain, body);
}

}  // namespace softnpu::kernels::inline CPU_CAPABILITY
