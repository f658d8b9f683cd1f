// Products of half-precision matrices: a few rows at a time, block by block, or on fp32 copies; rounded once.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>
#include <string>

namespace softnpu {

// Runs an operator that multiplies on the host tensors at the end of the stack, which share the dtype `half`.
void call_half(const c10::OperatorHandle& op, at::ScalarType half, torch::jit::Stack* stack);

// Runs mm, mv or addmm of a few half-precision rows, for a CPU whose own instructions the others use; whether it did.
bool call_skinny(const std::string& name, size_t arguments, torch::jit::Stack* stack);

// For operators whose CPU kernel takes no integers: on float64 copies of those of this type.
void call_in_double(const c10::OperatorHandle& op, at::ScalarType integer, torch::jit::Stack* stack);

// The dtype in which an operator that multiplies must run because its floating tensors differ, as on the card, which
// promotes them; nothing if they are alike.
std::optional<at::ScalarType> mixed_floats(const std::string& name, const c10::IValue* arguments, size_t count);

// Runs such an operator in that dtype; the result has the dtype of the first tensor.
void call_promoted(const c10::OperatorHandle& op, at::ScalarType common, torch::jit::Stack* stack);

// Gives the operator `name` such a kernel on host tensors: what `original`, which has its arguments, does to them.
void implement_half(const std::string& name, const std::string& original);

}  // namespace softnpu
