// Marks of exported names; everything here is inline.
#pragma once

#define TORCH_NPU_API
#define C10_NPU_API
