// Upstream's functions on npu tensors, as far as extensions call them; operators are called by name, see ops.h.
#pragma once

#include "torch_npu/csrc/include/ops.h"
