// Half precision by fp32 BLAS: operators that multiply matrices run on widened copies and round once.
//
// The card's cube unit takes half-precision inputs and accumulates in fp32, and PyTorch's CPU kernels for bf16 and
// fp16 products are up to a hundred times slower than fp32 where the CPU has no such instructions.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <string>
#include <vector>

namespace softnpu {

// Whether this CPU multiplies matrices of the dtype natively, so that widening would only cost.
bool cpu_has_native(at::ScalarType type);

// The reduced dtype that all floating tensors among the arguments share, or nothing.
std::optional<at::ScalarType> shared_half(const c10::IValue* arguments, size_t count);

// The same whatever the CPU can.
std::optional<at::ScalarType> common_half(const c10::IValue* arguments, size_t count);

// The same for a call written by hand.
bool all_half(std::initializer_list<const at::Tensor*> tensors);

at::Tensor widened(const at::Tensor& tensor);

}  // namespace softnpu
