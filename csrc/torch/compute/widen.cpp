#include "torch/compute/widen.h"

#include "torch/compat.h"

namespace softnpu {

bool cpu_has_native(at::ScalarType type) {
  using compat::cpu_has;
  static const bool bf16 = cpu_has("avx512_bf16") || cpu_has("amx_bf16") || cpu_has("arm_bf16") || cpu_has("bf16");
  static const bool fp16 = cpu_has("avx512_fp16") || cpu_has("amx_fp16") || cpu_has("fp16_arith");
  return type == at::kBFloat16 ? bf16 : type == at::kHalf ? fp16 : true;
}

namespace {
bool is_half(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBFloat16 || tensor.scalar_type() == at::kHalf;
}
}  // namespace

std::optional<at::ScalarType> common_half(const c10::IValue* arguments, size_t count) {
  std::optional<at::ScalarType> found;
  for (size_t i = 0; i < count; ++i) {
    if (!arguments[i].isTensor()) continue;
    const at::Tensor& tensor = arguments[i].toTensor();
    if (!tensor.defined() || !tensor.is_floating_point()) continue;
    if (!is_half(tensor) || (found && *found != tensor.scalar_type())) return std::nullopt;
    found = tensor.scalar_type();
  }
  return found;
}

std::optional<at::ScalarType> shared_half(const c10::IValue* arguments, size_t count) {
  const auto found = common_half(arguments, count);
  if (found && cpu_has_native(*found)) return std::nullopt;
  return found;
}

bool all_half(std::initializer_list<const at::Tensor*> tensors) {
  const at::ScalarType first = (*tensors.begin())->scalar_type();
  for (const at::Tensor* tensor : tensors) {
    if (!is_half(*tensor) || tensor->scalar_type() != first) return false;
  }
  return !cpu_has_native(first);
}

at::Tensor widened(const at::Tensor& tensor) { return tensor.to(at::kFloat); }

}  // namespace softnpu
