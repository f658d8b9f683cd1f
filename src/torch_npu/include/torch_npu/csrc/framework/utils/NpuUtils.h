// Sizes and limits that custom operators name.
#pragma once

#include <string>
#include <vector>

namespace at_npu::native {

constexpr int N = 32;          // numbers that a SmallVector keeps in place
constexpr int SHAPE_SIZE = 8;  // dimensions of a tensor of the card
constexpr int NPU_HALF_MAX = 65504;
constexpr int NPU_HALF_MIN = -65504;

}  // namespace at_npu::native

// Upstream's headers have these two at file scope, and extensions write `string` because of it.
using std::string;
using std::vector;
