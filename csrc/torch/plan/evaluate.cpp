#include "torch/plan/evaluate.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>

#include "torch/dispatch/cpu_alias.h"
#include "torch/dispatch/ivalues.h"
#include "torch/dispatch/operator_traits.h"
#include "torch/graph/capture.h"
#include "torch/memory/allocator.h"

namespace softnpu::plan {

namespace {

using at::Tensor;
using c10::IValue;
using c10::OperatorHandle;
using torch::jit::Stack;

constexpr size_t kMostCopied = size_t{64} << 20;  // of integers that come from the host

bool is_absent(const Tensor& tensor) { return (data_of(tensor) & kAbsent) != 0; }

// Memory of the host proper, which the program sees without a copy.
bool of_host(const Tensor& tensor) {
  return !is_alias(tensor) && tensor.has_storage() && block_at(base_of(tensor)) == nullptr;
}

bool overwrites(const OperatorHandle& op, size_t i) {
  const c10::Argument& argument = op.schema().arguments()[i];
  return argument.is_out() || (writes(argument) && traits_of(op.schema().name()).overwrites);
}

// A copy on the host, for evaluation; 1.0 where nothing is there. Undefined: it cannot be evaluated.
Tensor on_host(const Tensor& tensor) {
  const auto options = at::TensorOptions().dtype(tensor.scalar_type());
  if (is_float(tensor) && (is_absent(tensor) || !computes(tensor))) {
    return static_cast<int64_t>(tensor.nbytes()) <= kSmall ? at::ones(tensor.sizes(), options) : Tensor();
  }
  if (is_absent(tensor) || static_cast<int64_t>(tensor.nbytes()) > kSmall) return {};
  Tensor copied = at::empty(tensor.sizes(), options);
  copied.copy_(tensor);
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) copied.unsafeGetTensorImpl()->set_wrapped_number(true);
  return copied;
}

// Runs the operator on the host and copies the results that are wanted; whether it could.
bool evaluate(const OperatorHandle& op, const Stack& given, const std::vector<Tensor>& wanted, const Stack& results) {
  const HostScope host;
  Stack stack(given);
  std::vector<std::pair<Tensor, Tensor>> pairs;
  bool possible = true;
  for (size_t i = 0; i < stack.size() && possible; ++i) {
    map_tensors(stack[i], [&](const Tensor& tensor) {
      if (!tensor.defined() || !possible) return tensor;
      Tensor copied = overwrites(op, i) && static_cast<int64_t>(tensor.nbytes()) <= kSmall
                          ? at::empty(tensor.sizes(), at::TensorOptions().dtype(tensor.scalar_type()))
                          : on_host(tensor);
      possible = copied.defined();
      pairs.emplace_back(tensor, copied);
      return copied;
    });
  }
  if (!possible) return false;
  op.callBoxed(&stack);
  auto value_of = [&](const Tensor& target) -> Tensor {
    for (const auto& [tensor, copied] : pairs) {
      if (tensor.is_same(target)) return copied;
    }
    std::vector<Tensor> made, held;
    for (const IValue& value : stack) each_tensor(value, [&](const Tensor& tensor) { made.push_back(tensor); });
    const size_t first = results.size() - op.schema().returns().size();
    for (size_t i = first; i < results.size(); ++i) {
      each_tensor(results[i], [&](const Tensor& tensor) { held.push_back(tensor); });
    }
    for (size_t i = 0; i < held.size() && i < made.size(); ++i) {
      if (held[i].defined() && held[i].is_same(target)) return made[i];
    }
    return {};
  };
  for (const Tensor& target : wanted) {
    const Tensor value = value_of(target);
    if (!value.defined() || value.sizes() != target.sizes()) return false;
    target.copy_(value);
  }
  return true;
}

}  // namespace

Inputs::Inputs(const OperatorHandle& op, const Stack& stack) {
  const size_t count = op.schema().arguments().size(), first = stack.size() - count;
  for (size_t i = 0; i < count; ++i) {
    const bool overwritten = overwrites(op, i);
    each_tensor(stack[first + i], [&](const Tensor& tensor) {
      if (!tensor.defined()) return;
      const bool there = overwritten || !is_absent(tensor);
      if (!there && !absent_.defined()) absent_ = tensor;
      known_ &= there && computes(tensor);
      guessed_ |= !overwritten && data_of(tensor) != kReal;
    });
  }
}

bool computes_results(const OperatorHandle& op, const Stack& results) {
  bool all = true;
  each_tensor(results, op.schema().returns().size(), [&](const Tensor& tensor) { all &= computes(tensor); });
  return all;
}

void mark_results(const OperatorHandle& op, const Stack& results, uint8_t data) {
  each_tensor(results, op.schema().returns().size(), [&](const Tensor& tensor) { set_data(tensor, data); });
}

void fill_results(const OperatorHandle& op, const Stack& given, const Stack& results) {
  const std::string& name = op.schema().name();
  if (name == "aten::_amp_foreach_non_finite_check_and_unscale_") return;  // 1.0 is finite
  std::vector<Tensor> wanted;
  auto see = [&](const Tensor& tensor) {
    if (!tensor.defined()) return;
    if (is_float(tensor) || !computes(tensor)) return set_data(tensor, kAbsent);
    if (traits_of(name).chooses) {
      choose(name, op.schema(), given, tensor);
      return set_data(tensor, kGuessed);
    }
    wanted.push_back(tensor);
  };
  for (size_t i = 0; i < given.size(); ++i) {
    const auto& silently = traits_of(name).writes;
    const bool unsaid = std::find(silently.begin(), silently.end(), i) != silently.end();
    if (writes(op.schema().arguments()[i]) || unsaid) each_tensor(given[i], see);
  }
  std::vector<IValue> arguments(given.begin(), given.end());
  each_new_tensor(results, op.schema().returns().size(), arguments, see);
  if (wanted.empty()) return;
  const uint8_t data = evaluate(op, given, wanted, results) ? kGuessed : kAbsent;
  for (const Tensor& tensor : wanted) set_data(tensor, data);
}

bool gives_arguments(const c10::FunctionSchema& schema) {
  for (const auto& result : schema.returns()) {
    if (!writes(result)) return false;
  }
  return true;
}

void leave_arguments(const OperatorHandle& op, Stack* stack) {
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size();
  const Stack given(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  torch::jit::drop(*stack, count);
  size_t returned = 0;
  for (size_t i = 0; i < count && returned < schema.returns().size(); ++i) {
    if (!writes(schema.arguments()[i])) continue;
    stack->push_back(given[i]);
    ++returned;
  }
  fill_results(op, given, *stack);
}

// The result has as many elements as the mask selects.
bool answer_masked_select(const OperatorHandle& op, Stack* stack) {
  if (op.schema().name() != "aten::masked_select" || op.schema().arguments().size() != 2) return false;
  const Tensor self = torch::jit::peek(*stack, 0, 2).toTensor(), mask = torch::jit::peek(*stack, 1, 2).toTensor();
  if (is_absent(mask) || !computes(mask)) return false;
  int64_t count = 0;
  {
    const HostScope host;
    Tensor copied = at::empty(mask.sizes(), at::TensorOptions().dtype(mask.scalar_type()));
    copied.copy_(mask);
    const auto shape = at::infer_size_dimvector(self.sizes(), mask.sizes());
    const int64_t repeats = c10::multiply_integers(shape) / std::max<int64_t>(1, mask.numel());
    count = copied.sum().item<int64_t>() * repeats;
  }
  Tensor result = at::empty({count}, self.options());
  set_data(result, kAbsent);
  torch::jit::drop(*stack, 2);
  stack->emplace_back(std::move(result));
  return true;
}

void copy(const Tensor& to, const Tensor& from) {
  Tensor target = to;
  if (of_host(to) && of_host(from)) return;  // a collective's own, whose values are not there
  if (of_host(to)) {
    if (!is_absent(from)) {
      if (data_of(from) != kReal) warn_guessed("copy_ to the host");
      target.copy_(from);
      return;
    }
    if (!is_float(from) && (data_of(from) & kFloating) == 0) raise_absent("copy_ to the host", from);
    warn_guessed("copy_ to the host");
    if (is_float(from) && static_cast<int64_t>(to.nbytes()) <= kSmall) target.fill_(1);
    return;
  }
  if (is_float(to) && to.numel() > 1) return set_data(to, kAbsent);
  const bool fits = computes(to) || (!is_float(to) && to.nbytes() <= kMostCopied);
  if (!fits || (is_absent(from) && (!is_float(from) || is_float(to)))) return set_data(to, kAbsent);
  if (is_absent(from)) {
    target.fill_(1);
    return set_data(to, kGuessed);
  }
  target.copy_(from);
  set_data(to, data_of(from));
}

}  // namespace softnpu::plan
