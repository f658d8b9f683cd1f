#include "torch/plan/plan.h"

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/nonzero.h>
#include <torch/library.h>

#include <shared_mutex>
#include <unordered_map>

#include "torch/dispatch/cpu_alias.h"
#include "torch/dispatch/ivalues.h"
#include "torch/dispatch/operator_traits.h"
#include "torch/dispatch/reads_data.h"
#include "torch/memory/allocator.h"
#include "torch/plan/evaluate.h"
#include "torch/plan/learned.h"
#include "torch/plan/values.h"
#include "torch/plan/workspace.h"

namespace softnpu::plan {

namespace {

using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using c10::OperatorHandle;
using torch::jit::Stack;

enum class Rule : uint8_t {
  through,  // it runs: it computes nothing itself
  scalar,   // the host reads a value
  ours,     // a kernel of csrc/kernels, without its loops
  copy,
  leaf,  // a CPU kernel: its shapes alone
};

bool gives_tensors(const c10::FunctionSchema& schema) {
  for (const auto& argument : schema.arguments()) {
    if (writes(argument)) return true;
  }
  for (const auto& result : schema.returns()) {
    const auto& type = *result.type();
    if (type.isSubtypeOf(*c10::TensorType::get()) || type.isSubtypeOf(*c10::ListType::ofTensors())) return true;
  }
  return false;
}

Rule classify(const OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  const std::string& name = schema.name();
  if (name == "aten::_local_scalar_dense") return Rule::scalar;
  if (name == "aten::copy_") return Rule::copy;
  if (name.rfind("softnpu::", 0) == 0) return Rule::ours;
  if (traits_of(name).computes) return Rule::leaf;
  if (name == "aten::native_dropout_backward") return Rule::through;  // products, whatever its registration
  if (traits_of(name).describes || name.rfind("aten::new_empty", 0) == 0 || name.rfind("aten::empty", 0) == 0 ||
      op.hasTag(at::Tag::inplace_view) || is_view(schema)) {
    return Rule::through;
  }
  if (!gives_tensors(schema) && !op.hasTag(at::Tag::data_dependent_output)) return Rule::through;
  if (op.hasKernelForDispatchKey(DispatchKey::CPU)) return Rule::leaf;
  const bool composite = op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
                         op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) ||
                         op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional);
  return composite ? Rule::through : Rule::leaf;
}

Rule rule_of(const OperatorHandle& op) {
  static auto* rules = new std::unordered_map<OperatorHandle, Rule>;
  static std::shared_mutex mutex;
  {
    const std::shared_lock lock(mutex);
    const auto found = rules->find(op);
    if (found != rules->end()) return found->second;
  }
  const Rule rule = classify(op);
  const std::unique_lock lock(mutex);
  return rules->emplace(op, rule).first->second;
}

// --- shapes --------------------------------------------------------------------------------------------------------

// A call on tensors without memory, beside the call on the tensors that they stand for.
class MetaCall {
 public:
  MetaCall(const OperatorHandle& op, const Stack& stack) : op_(op) {
    const size_t count = op.schema().arguments().size();
    stack_.assign(stack.end() - static_cast<std::ptrdiff_t>(count), stack.end());
    for (IValue& value : stack_) {
      if (value.isDevice()) value = IValue(c10::Device(c10::kMeta));
      if (value.isGenerator()) value = IValue();
      map_tensors(value, [this](const Tensor& tensor) { return stand_in(tensor); });
    }
  }

  void run() {
    const HostScope host;  // shape functions in Python make tensors of numbers
    op_.callBoxed(&stack_);
  }

  // The results: arguments where it returns them, resized if the operator resized them, and new ones.
  void finish() {
    for (const auto& [given, meta] : pairs_) {
      if (meta.sizes() == given.sizes()) continue;
      given.resize_(meta.sizes());
      if (given.strides() != meta.strides()) given.as_strided_(meta.sizes(), meta.strides());
    }
    for (IValue& value : stack_) {
      map_tensors(value, [this](const Tensor& meta) { return real(meta); });
    }
  }
  Stack& results() { return stack_; }
  const Stack& metas() const { return stack_; }

 private:
  Tensor stand_in(const Tensor& tensor) {
    // A number stays one: shape functions in Python get it as such.
    if (!tensor.defined() || tensor.unsafeGetTensorImpl()->is_wrapped_number()) return tensor;
    for (const auto& [given, meta] : pairs_) {
      if (given.is_same(tensor)) return meta;
    }
    Tensor meta = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(c10::kMeta));
    pairs_.emplace_back(tensor, meta);
    return meta;
  }
  Tensor real(const Tensor& meta) const {
    if (!meta.defined() || meta.device().type() != c10::kMeta) return meta;
    for (const auto& [given, stand_in] : pairs_) {
      if (stand_in.is_same(meta)) return given;
    }
    return at::empty_strided(meta.sizes(), meta.strides(), meta.options().device(c10::kCPU));
  }

  const OperatorHandle& op_;
  Stack stack_;
  c10::SmallVector<std::pair<Tensor, Tensor>, 6> pairs_;
};

void raise_without_shapes(const OperatorHandle& op) {
  const std::string at = line();
  TORCH_CHECK_NOT_IMPLEMENTED(false, "softnpu plan: ", op.schema().name(),
                              " has no shape function (no Meta kernel), and its arguments are too large to run it",
                              at.empty() ? "." : "; called by " + at);
}

bool has_shapes(const OperatorHandle& op) { return op.hasComputedKernelForDispatchKey(DispatchKey::Meta); }

// Runs the CPU kernel itself, on what is there.
void run_kernel(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) { op.redispatchBoxed(keys, stack); }

bool few_bytes(const Stack& stack, size_t arguments) {
  int64_t bytes = 0;
  each_tensor(stack, arguments, [&](const Tensor& tensor) { bytes += static_cast<int64_t>(tensor.nbytes()); });
  return bytes <= kSmall;
}

// An index that is a mask whose values are known: the positions that it selects, in its place.
void resolve_masks(const OperatorHandle& op, Stack* stack) {
  const std::string& name = op.schema().name();
  const size_t first = stack->size() - op.schema().arguments().size();
  if (name != "aten::index" && name != "aten::_unsafe_index") return;
  c10::List<std::optional<Tensor>> resolved;
  for (const std::optional<Tensor>& index : (*stack)[first + 1].toOptionalTensorList()) {
    if (!index.has_value() || !is_mask(*index)) {
      resolved.push_back(index);
      continue;
    }
    if ((data_of(*index) & kAbsent) != 0 || !computes(*index)) raise_absent(name.c_str(), *index);
    const Tensor places = at::nonzero(*index);
    for (int64_t d = 0; d < index->dim(); ++d) resolved.push_back(places.select(1, d));
  }
  (*stack)[first + 1] = IValue(std::move(resolved));
}

void answer_leaf(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  const size_t count = op.schema().arguments().size();
  Stack given;  // freed last, in the order of the arguments, as a kernel's caller does
  const Inputs inputs(op, *stack);
  const bool waits = reads_data(op, c10::ArrayRef<const IValue>(stack->data() + stack->size() - count, count));
  if (waits) {
    if (inputs.known()) {
      run_kernel(op, keys, stack);
      return mark_results(op, *stack, inputs.guessed() ? kGuessed : kReal);
    }
    resolve_masks(op, stack);
    if (reads_data(op, c10::ArrayRef<const IValue>(stack->data() + stack->size() - count, count))) {
      if (answer_masked_select(op, stack)) return;
      raise_absent(op.schema().name().c_str(), inputs.absent());
    }
  }
  given.assign(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  if (!has_shapes(op)) {
    if (gives_arguments(op.schema())) return leave_arguments(op, stack);
    if (!few_bytes(given, count)) raise_without_shapes(op);
    run_kernel(op, keys, stack);
    return mark_results(op, *stack, inputs.known() ? kReal : kAbsent);
  }
  MetaCall meta(op, given);
  meta.run();
  if (inputs.known() && computes_results(op, meta.metas())) {
    run_kernel(op, keys, stack);
    return mark_results(op, *stack, inputs.guessed() ? kGuessed : kReal);
  }
  if (answer_learned(op, stack)) return fill_results(op, given, *stack);
  {
    const Workspace workspace(op, given, meta.metas());  // what the kernel needs besides
    meta.finish();
  }
  torch::jit::drop(*stack, count);
  for (IValue& value : meta.results()) stack->push_back(std::move(value));
  fill_results(op, given, *stack);
}

// Without what it computes; where its integers alone decide, its loops are not the ones left out.
void answer_ours(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  const size_t count = op.schema().arguments().size();
  const Stack given(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  const Inputs inputs(op, *stack);
  if (inputs.known()) {
    run_kernel(op, keys, stack);
    return mark_results(op, *stack, inputs.guessed() ? kGuessed : kReal);
  }
  if (op.schema().name() == "softnpu::route_pairs") raise_absent("routing", given[0].toTensor());  // sizes depend on it
  {
    const LeaveData leave;
    const Catch inside;  // its temporaries' operators
    run_kernel(op, keys, stack);
  }
  const c10::impl::ExcludeDispatchKeyGuard plain(kKey);
  fill_results(op, given, *stack);
}

bool strided(const Stack& stack, size_t count) {
  bool dense = true;
  each_tensor(stack, count, [&](const Tensor& t) { dense &= t.layout() == at::kStrided && !t.is_nested(); });
  return dense;
}

bool any_npu(const Stack& stack, size_t count) {
  bool found = false;
  each_tensor(stack, count, [&](const Tensor& tensor) { found |= on_npu(tensor); });
  return found;
}

void caught(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  const DispatchKeySet below = keys & DispatchKeySet(DispatchKeySet::FULL_AFTER, kKey);
  if (any_npu(*stack, op.schema().arguments().size())) return op.redispatchBoxed(below, stack);
  answer(op, below, stack);
}

TORCH_LIBRARY_IMPL(_, DeferredInit, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&caught>()); }

}  // namespace

void answer(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  const Rule rule = rule_of(op);
  if (rule == Rule::through) return op.redispatchBoxed(keys, stack);
  const size_t count = op.schema().arguments().size();
  TORCH_CHECK_NOT_IMPLEMENTED(strided(*stack, count), "softnpu plan: ", op.schema().name(),
                              " on sparse, nested or quantized tensors is not planned.");
  if (rule == Rule::ours) return answer_ours(op, keys, stack);
  const c10::impl::ExcludeDispatchKeyGuard plain(kKey);
  if (rule == Rule::scalar) {
    const c10::Scalar value = read_scalar(torch::jit::peek(*stack, 0, 1).toTensor());
    torch::jit::drop(*stack, 1);
    return stack->push_back(IValue(value));
  }
  if (rule == Rule::copy) {
    plan::copy((*stack)[stack->size() - 3].toTensor(), (*stack)[stack->size() - 2].toTensor());
    return torch::jit::drop(*stack, 2);
  }
  answer_leaf(op, keys, stack);
}

}  // namespace softnpu::plan
