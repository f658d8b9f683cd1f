// Settings of upstream's framework; those that have a meaning here are torch.npu's options. Present because extensions
// include it.
#pragma once

#include "torch_npu/csrc/core/npu/NPUMacros.h"
