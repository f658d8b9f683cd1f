#include "torch/plan/workspace.h"

#include <ATen/native/TypeProperties.h>
#include <ATen/ops/empty_like.h>

#include "torch/dispatch/ivalues.h"
#include "torch/dispatch/operator_traits.h"

namespace softnpu::plan {

using at::Tensor;
using torch::jit::Stack;

Workspace::Workspace(const c10::OperatorHandle& op, const Stack& given, const Stack&) {
  if (traits_of(op.schema().name()).promotes) promote(op, given);
}

// TensorIterator's temporaries: outputs first (an argument that is written and has another dtype), then inputs.
void Workspace::promote(const c10::OperatorHandle& op, const Stack& given) {
  at::native::ResultTypeState state = {};
  bool mixed = false;
  std::optional<at::ScalarType> first;
  each_tensor(given, given.size(), [&](const Tensor& tensor) {
    state = at::native::update_result_type_state(tensor, state);
    mixed |= first.value_or(tensor.scalar_type()) != tensor.scalar_type();
    first = first.value_or(tensor.scalar_type());
  });
  if (!mixed) return;
  const at::ScalarType common = at::native::result_type(state);
  for (size_t i = 0; i < given.size(); ++i) {
    if (!given[i].isTensor() || !given[i].toTensor().defined() || !writes(op.schema().arguments()[i])) continue;
    const Tensor& out = given[i].toTensor();
    if (out.scalar_type() == common) continue;
    held_.push_back(at::empty_like(out, out.options().dtype(common), at::MemoryFormat::Contiguous));
  }
  for (size_t i = 0; i < given.size(); ++i) {
    if (!given[i].isTensor() || !given[i].toTensor().defined()) continue;
    const Tensor& input = given[i].toTensor();
    if (input.scalar_type() == common || op.schema().arguments()[i].is_out()) continue;
    held_.push_back(at::empty_like(input, input.options().dtype(common), at::MemoryFormat::Preserve));
  }
}

}  // namespace softnpu::plan
