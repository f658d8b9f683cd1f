// Every ATen operator with a CPU kernel, on the npu device: one boxed kernel, registered for all of them.
#pragma once

#include <c10/core/DispatchKeySet.h>

namespace softnpu {

void register_fallbacks();  // once, after PyTorch's operators are known

}  // namespace softnpu
