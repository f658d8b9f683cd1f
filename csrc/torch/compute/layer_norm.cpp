#include "torch/compute/layer_norm.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>

#include "torch/compute/widen.h"
#include "torch/dispatch/trusted.h"
#include "torch/plan/plan.h"

namespace softnpu {

namespace {

using c10::IValue;
using torch::jit::Stack;

// The argument of this name; nullptr where the operator has none.
IValue* find(const c10::OperatorHandle& op, Stack& stack, const char* name) {
  const auto index = op.schema().argumentIndexWithName(name);
  return index ? &stack[stack.size() - op.schema().arguments().size() + static_cast<size_t>(*index)] : nullptr;
}

at::Tensor tensor_in(const IValue* value) {
  return value != nullptr && value->isTensor() ? value->toTensor() : at::Tensor();
}

}  // namespace

bool half_input(const c10::OperatorHandle& op, const Stack& stack) {
  const CallArguments given{op.schema(), stack.data() + stack.size() - op.schema().arguments().size()};
  const at::Tensor input = given.tensor("input");
  return input.defined() && at::isReducedFloatingType(input.scalar_type());
}

void call_layer_norm(const c10::OperatorHandle& op, Stack* stack) {
  const at::Tensor input = find(op, *stack, "input")->toTensor();
  const std::vector<int64_t> columns = find(op, *stack, "normalized_shape")->toIntVector();
  const auto count = static_cast<int64_t>(columns.size());
  at::ScalarType weight_type = input.scalar_type();
  IValue* weight = find(op, *stack, "weight");
  if (const at::Tensor given = tensor_in(weight); given.defined()) {
    weight_type = given.scalar_type();
    *weight = IValue(widened(given));
  } else if (input.dim() >= count && input.sizes().slice(input.dim() - count).equals(columns)) {
    *weight = IValue(at::ones(columns, input.options().dtype(at::kFloat)));
  }
  for (const char* name : {"bias", "mean", "rstd"}) {
    IValue* value = find(op, *stack, name);
    if (const at::Tensor given = tensor_in(value); given.defined()) *value = IValue(widened(given));
  }
  const bool gradient = find(op, *stack, "grad_out") != nullptr;
  plan::call(op, c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  if (!gradient) return;
  for (size_t i = stack->size() - 2; i < stack->size(); ++i) {  // of the weight and the bias
    if (const at::Tensor result = tensor_in(&(*stack)[i]); result.defined()) (*stack)[i] = result.to(weight_type);
  }
}

}  // namespace softnpu
