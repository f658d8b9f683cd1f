// Products of half-precision matrices without fp32 copies of whole operands: a few rows, or block by block.
#pragma once

#include <ATen/core/stack.h>

#include <string>

namespace softnpu {

// Runs mm, addmm or bmm (by qualified name) on the half tensors at the end of the stack, if a way fits; whether one
// did.
bool call_product(const std::string& name, size_t arguments, torch::jit::Stack* stack);

}  // namespace softnpu
