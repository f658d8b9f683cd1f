#include "torch/dispatch/fallback.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/op_registration/adaption.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <deque>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "device/device.h"
#include "torch/compute/layer_norm.h"
#include "torch/compute/products.h"
#include "torch/compute/widen.h"
#include "torch/compute/zero.h"
#include "torch/dispatch/card_fallback.h"
#include "torch/dispatch/cpu_alias.h"
#include "torch/dispatch/enumerations.h"
#include "torch/dispatch/ivalues.h"
#include "torch/dispatch/kernel_frame.h"
#include "torch/dispatch/launch.h"
#include "torch/dispatch/reads_data.h"
#include "torch/dispatch/trusted.h"
#include "torch/graph/capture.h"
#include "torch/graph/recording.h"
#include "torch/runtime/generator.h"
#include "torch/runtime/sync.h"

namespace softnpu {

namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using torch::jit::Stack;

// Whether a CPU tensor may be the argument beside NPU tensors, as on any accelerator: indices and lengths.
bool takes_host_tensor(const Operation& operation, const c10::Argument& argument) {
  if (argument.name() == "indices") return operation.traits.host_indices;
  return argument.name() == "lengths" && operation.name == "aten::_pack_padded_sequence";
}

void check_required(const c10::OperatorHandle& op, const Stack& stack, const std::vector<size_t>& required) {
  const auto& arguments = op.schema().arguments();
  for (const size_t at : required) {
    const IValue& value = stack[stack.size() - arguments.size() + at];
    TORCH_CHECK(!value.isTensor() || value.toTensor().defined(), op.schema().name(), ": argument '",
                arguments[at].name(), "' must be a tensor, but is None");
  }
}

bool must_be_tensor(const c10::Argument& argument) { return argument.type()->kind() == c10::TypeKind::TensorType; }

struct FallbackFacts {  // what a call must do, worked out once per operator
  explicit FallbackFacts(const c10::OperatorHandle& op)
      : operation(operation_of(op)),
        name(operation.name),
        arguments(operation.arguments),
        returns(operation.returns),
        widens(operation.traits.widens),
        accumulates(operation.traits.accumulates),
        on_host(card_fallback(op)) {
    const c10::FunctionSchema& schema = op.schema();
    draws_normal = name == "aten::normal_";
    fills = name == "aten::zero_" || (name == "aten::fill_" && schema.overload_name() == "Scalar");
    if (name == "aten::_pack_padded_sequence") host_result = 1;  // batch_sizes
    for (size_t i = 0; i < arguments; ++i) {
      const auto& argument = schema.arguments()[i];
      const bool is_written = writes(argument);
      is_mutable.push_back(is_written);
      host_ok.push_back(takes_host_tensor(operation, argument));
      any_mutable |= is_written;
      auto type = argument.type();
      if (must_be_tensor(argument)) required.push_back(i);
      if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
      if (type->kind() == c10::TypeKind::GeneratorType) generator = static_cast<int>(i);
      if (type->kind() == c10::TypeKind::DeviceObjType) device = static_cast<int>(i);
      if (argument.name() == "dtype") dtype = static_cast<int>(i);
      if (const int64_t most = members(argument)) enumerations.emplace_back(i, most);
      if (argument.real_type()->str().find("SymInt") != std::string::npos) sizes.push_back(i);
    }
  }
  // Of the enumeration that the argument is; 0 if it is none.
  static int64_t members(const c10::Argument& argument) {
    auto type = argument.real_type();
    if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
    switch (type->kind()) {
      case c10::TypeKind::ScalarTypeType:
        return kDtypes;
      case c10::TypeKind::LayoutType:
        return kLayouts;
      case c10::TypeKind::MemoryFormatType:
        return kMemoryFormats;
      case c10::TypeKind::IntType:
        return argument.name() == "reduction" ? kReductions : 0;
      default:
        return 0;
    }
  }
  void check_enumerations(const c10::OperatorHandle& op, const Stack& stack) const {
    for (const auto& [at, most] : enumerations) {
      const IValue& value = stack[stack.size() - arguments + at];
      TORCH_CHECK(!value.isInt() || (value.toInt() >= 0 && value.toInt() < most), name, ": argument '",
                  op.schema().arguments()[at].name(), "' received a number that means nothing (", value.toInt(), ")");
    }
  }
  // A number below -2^62 stays symbolic though nothing traces, and no kernel takes such a list apart.
  void plain_sizes(Stack& stack) const {
    for (const size_t at : sizes) {
      IValue& value = stack[stack.size() - arguments + at];
      if (C10_UNLIKELY(value.isSymInt())) {
        value = value.toSymInt().guard_int(__FILE__, __LINE__);
      } else if (C10_UNLIKELY(value.isSymIntList())) {
        std::vector<int64_t> plain;
        for (const c10::SymInt& one : value.toSymIntVector()) plain.push_back(one.guard_int(__FILE__, __LINE__));
        value = std::move(plain);
      }
    }
  }
  const Operation& operation;
  const std::string& name;
  const size_t arguments, returns;
  const bool widens, accumulates;
  const std::string on_host;  // what the card runs on the host instead; mostly empty
  int dtype = -1;             // the argument of the result's dtype
  std::vector<bool> is_mutable, host_ok;
  bool any_mutable = false, draws_normal = false, fills = false;
  int generator = -1, device = -1;
  std::vector<size_t> required, sizes;                   // arguments that must be tensors; that may be symbolic
  std::vector<std::pair<size_t, int64_t>> enumerations;  // arguments, and how many members their enumeration has
  int host_result = -1;                                  // a result that PyTorch wants on the CPU whatever the device
};

// Normal numbers for integers, which the CPU refuses: drawn in fp32 and cut off, as the card does.
void call_normal(const c10::OperatorHandle& op, const FallbackFacts& facts, Stack* stack) {
  IValue& value = (*stack)[stack->size() - facts.arguments];
  const at::Tensor self = value.toTensor();
  value = IValue(at::empty(self.sizes(), self.options().dtype(at::kFloat)));
  plan::call(op, DispatchKeySet(DispatchKey::CPU), stack);
  stack->back() = IValue(self.copy_(stack->back().toTensor()));
}

// zero_ and fill_ as on the fast path: zeros cost no host memory, whatever stage is asked for.
void call_fill(const FallbackFacts& facts, Stack* stack) {
  at::Tensor self = (*stack)[stack->size() - facts.arguments].toTensor();
  if (facts.arguments == 1) {
    softnpu::zero_(self);
  } else {
    softnpu::fill_(self, stack->back().toScalar());
  }
  torch::jit::drop(*stack, facts.arguments);
  stack->emplace_back(std::move(self));
}

// An operator whose result's size the host must know waits for the device.
void wait_for_data(const c10::OperatorHandle& op, c10::ArrayRef<const IValue> arguments, int device) {
  if (!Capture::any() && !Queues::any()) return;
  if (reads_data(op, arguments)) wait_for_stream(device, current_stream(device), op.operator_name().name.c_str());
}

// `host` is the CPU's key for the layout that the call was dispatched on: CPU, SparseCPU, ...
void run(const c10::OperatorHandle& op, const FallbackFacts& facts, DispatchKey host, Stack* stack) {
  CpuAliases aliases(facts.name, facts.operation.works);
  const size_t first = stack->size() - facts.arguments;
  for (size_t i = 0; i < facts.arguments; ++i) {
    each_tensor((*stack)[first + i],
                [&](const at::Tensor& tensor) { aliases.see(tensor, facts.is_mutable[i], facts.host_ok[i]); });
  }
  if (facts.device >= 0) {
    IValue& device = (*stack)[first + static_cast<size_t>(facts.device)];
    if (device.isDevice() && device.toDevice().type() == c10::kPrivateUse1) {
      aliases.see(device.toDevice());
      device = IValue(c10::Device(c10::kCPU));
    }
  }
  aliases.resolve_device();
  wait_for_data(op, c10::ArrayRef<const IValue>(stack->data() + first, facts.arguments), aliases.device());
  for (size_t i = 0; i < facts.arguments; ++i) {
    const bool list = !(*stack)[first + i].isTensor();
    map_tensors((*stack)[first + i], [&](const at::Tensor& tensor) {
      at::Tensor alias = aliases.in(tensor, facts.is_mutable[i], list);
      // Sparse kernels ask whether gradients will be wanted, and save less if not.
      if (host != DispatchKey::CPU && tensor.defined() && tensor.requires_grad()) alias.set_requires_grad(true);
      return alias;
    });
  }
  {
    const KernelFrame frame(aliases.device());
    if (facts.generator >= 0) {
      IValue& generator = (*stack)[first + static_cast<size_t>(facts.generator)];
      std::optional<at::Generator> given;
      if (!generator.isNone()) given = generator.toGenerator();
      TORCH_CHECK(aliases.involves_npu(), "Expected a 'cpu' device type for generator but found 'npu'");
      generator = IValue(derive_cpu_generator(given, static_cast<c10::DeviceIndex>(aliases.device())));
    }
    std::optional<at::ScalarType> half, common;
    bool native_half = false;
    if (facts.widens) {
      half = common_half(stack->data() + first, facts.arguments);
      native_half = half.has_value() && cpu_has_native(*half);
      if (native_half) half.reset();
      if (!half && !native_half && !facts.any_mutable)
        common = mixed_floats(facts.name, stack->data() + first, facts.arguments);
    }
    const bool asks_dtype = facts.dtype >= 0 && !(*stack)[first + static_cast<size_t>(facts.dtype)].isNone();
    if (facts.accumulates && !asks_dtype) half = common_half(stack->data() + first, facts.arguments);
    std::optional<at::ScalarType> counted;
    if (C10_UNLIKELY(facts.operation.traits.counts)) {
      const at::ScalarType type = (*stack)[first].toTensor().scalar_type();
      if (at::isIntegralType(type, false)) counted = type;
    }
    const bool integers = facts.draws_normal && at::isIntegralType((*stack)[first].toTensor().scalar_type(), false);
    const bool statistics = facts.operation.traits.wide_statistics && half_input(op, *stack);
    auto call = [op, &facts, host, half, native_half, common, counted, statistics, integers](Stack* on) {
      const auto check_data = facts.operation.traits.trusted_data;
      if (check_data != nullptr && !plan::on()) {
        check_data({op.schema(), on->data() + on->size() - facts.arguments});
      }
      if (half.has_value()) {
        call_half(op, *half, on);
      } else if (common.has_value()) {
        call_promoted(op, *common, on);
      } else if (counted.has_value()) {
        call_in_double(op, *counted, on);
      } else if (statistics) {
        call_layer_norm(op, on);
      } else if (integers) {
        call_normal(op, facts, on);
      } else if (!native_half || !call_skinny(facts.name, facts.arguments, on)) {
        plan::call(op, DispatchKeySet(host), on);
      }
    };
    if (Recording* recording = Capture::any() ? Recording::current() : nullptr) {
      recording->call(op, stack, call);
    } else if (facts.fills && host == DispatchKey::CPU && !plan::on()) {
      call_fill(facts, stack);
    } else {
      call(stack);
    }
    for (size_t i = 0; i < facts.returns; ++i) {
      if (static_cast<int>(i) == facts.host_result) continue;
      map_tensors((*stack)[stack->size() - facts.returns + i],
                  [&](at::Tensor tensor) { return aliases.out(std::move(tensor)); });
    }
    if (facts.any_mutable) aliases.write_back();
  }
  if (facts.host_result >= 0) {  // its bytes leave the device
    IValue& result = (*stack)[stack->size() - facts.returns + static_cast<size_t>(facts.host_result)];
    result = IValue(result.toTensor().clone());
  }
}

// The facts and their operators live as long as the process.
void launch_fallback(const c10::OperatorHandle& op, const FallbackFacts& facts, DispatchKey host, Stack* stack) {
  if (C10_UNLIKELY(!facts.on_host.empty())) tell_of_fallback(facts.on_host);
  check_required(op, *stack, facts.required);
  facts.check_enumerations(op, *stack);
  facts.plain_sizes(*stack);
  if (C10_UNLIKELY(host == DispatchKey::QuantizedCPU)) {
    trusted::quantizers({op.schema(), stack->data() + stack->size() - facts.arguments});
  }
  const auto check_sizes = facts.operation.traits.trusted_sizes;
  if (C10_UNLIKELY(check_sizes != nullptr)) {
    check_sizes({op.schema(), stack->data() + stack->size() - facts.arguments});
  }
  if (C10_LIKELY(!facts.operation.asked())) return run(op, facts, host, stack);
  OperatorTask task(facts.operation, stack, [op, &facts, host](Stack* on) { run(op, facts, host, on); });
  launch(task);
}

// The kernel of one operator, with its facts inside.
class CpuKernel final : public c10::OperatorKernel {
 public:
  CpuKernel(const c10::OperatorHandle& op, DispatchKey host) : facts_(op), host_(host) {}
  void operator()(const c10::OperatorHandle& op, DispatchKeySet, Stack* stack) {
    launch_fallback(op, facts_, host_, stack);
  }

 private:
  FallbackFacts facts_;
  DispatchKey host_;
};

// An operator that stays made of others, and whose first step would take a missing tensor apart, or the bytes of one
// whose storage was cut. A storage that was released says shapes alone.
class CompositeKernel final : public c10::OperatorKernel {
 public:
  explicit CompositeKernel(const c10::OperatorHandle& op) : facts_(op) {}
  void operator()(const c10::OperatorHandle& op, DispatchKeySet, Stack* stack) {
    check_required(op, *stack, facts_.required);
    facts_.check_enumerations(op, *stack);
    for (size_t i = 0; i < facts_.arguments; ++i) {
      each_tensor((*stack)[stack->size() - facts_.arguments + i], [&](const at::Tensor& tensor) {
        const bool plain = on_npu(tensor) && tensor.layout() == at::kStrided && tensor.has_storage();
        if (plain && tensor.storage().nbytes() != 0) check_inside(tensor, facts_.name);
      });
    }
    op.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), stack);  // the same kernel on every device
  }

 private:
  FallbackFacts facts_;
};

// An operator that is made of others for tensors of another layout, and whose first step would take a missing one
// apart.
class CompositeOfLayout final : public c10::OperatorKernel {
 public:
  CompositeOfLayout(std::vector<size_t> required, DispatchKey host) : required_(std::move(required)), host_(host) {}
  void operator()(const c10::OperatorHandle& op, DispatchKeySet, Stack* stack) {
    check_required(op, *stack, required_);
    op.redispatchBoxed(DispatchKeySet(host_), stack);
  }

 private:
  const std::vector<size_t> required_;
  const DispatchKey host_;
};

// For operators registered later (other libraries), the facts are looked up.
const FallbackFacts& facts_of(const c10::OperatorHandle& op) {
  static auto* all = new std::unordered_map<c10::OperatorHandle, std::unique_ptr<FallbackFacts>>;
  static std::shared_mutex mutex;
  {
    std::shared_lock lock(mutex);
    const auto found = all->find(op);
    if (found != all->end()) return *found->second;
  }
  std::unique_lock lock(mutex);
  auto& facts = (*all)[op];
  if (!facts) facts = std::make_unique<FallbackFacts>(op);
  return *facts;
}

template <DispatchKey host>
void generic(const c10::OperatorHandle& op, Stack* stack) {
  const FallbackFacts& facts = facts_of(op);
  TORCH_CHECK_NOT_IMPLEMENTED(
      op.hasComputedKernelForDispatchKey(host), "Could not run '", facts.name,
      "' with arguments from the 'NPU' backend: it has neither an NPU nor a CPU kernel. If it was "
      "built for the card alone, supply a reference in Python: softnpu.kernels.register(\"",
      facts.name, "\", function), see docs/custom_kernels.md.");
  launch_fallback(op, facts, host, stack);
}

bool takes_tensor(const c10::FunctionSchema& schema) {
  for (const auto& argument : schema.arguments()) {
    auto type = argument.type();
    if (type->isSubtypeOf(*c10::TensorType::get()) || type->isSubtypeOf(*c10::ListType::ofTensors())) return true;
  }
  return false;
}

bool has_kernel(const c10::OperatorHandle& op, std::initializer_list<DispatchKey> keys) {
  return std::any_of(keys.begin(), keys.end(), [&](DispatchKey key) { return op.hasKernelForDispatchKey(key); });
}

bool random_without_generator(const c10::OperatorHandle& op) {
  return op.hasTag(at::Tag::nondeterministic_seeded) && FallbackFacts(op).generator < 0;
}

bool made_of_others(const c10::OperatorHandle& op) {
  return has_kernel(op, {DispatchKey::CompositeExplicitAutograd, DispatchKey::CompositeExplicitAutogradNonFunctional});
}

// Made of others for all devices, with a tensor among its arguments.
bool is_composite(const c10::OperatorHandle& op) {
  return !has_kernel(op, {DispatchKey::PrivateUse1, DispatchKey::CPU}) && !traits_of(op.schema().name()).composite &&
         made_of_others(op) && !random_without_generator(op) && !is_view(op.schema()) && takes_tensor(op.schema());
}

// full_like(x, 1, device="cpu") goes where it is told, so it stays made of others.
bool wants_composite_kernel(const c10::OperatorHandle& op) {
  return op.schema().name() == "aten::copy" || (is_composite(op) && FallbackFacts(op).device >= 0);
}

bool wants_cpu_kernel(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  if (op.hasKernelForDispatchKey(DispatchKey::PrivateUse1) || traits_of(name).composite) return false;
  if (op.hasKernelForDispatchKey(DispatchKey::CPU)) return !random_without_generator(op);
  // A window function calls a CPU routine on what it has made, so it must make it on the CPU.
  return name == "aten::kaiser_window" || (is_composite(op) && !wants_composite_kernel(op));
}

#define FALLBACK(npu, host)                                                               \
  TORCH_LIBRARY_IMPL(_, npu, m) {                                                         \
    m.fallback(torch::CppFunction::makeFromBoxedFunction<&generic<DispatchKey::host>>()); \
  }
FALLBACK(PrivateUse1, CPU)
FALLBACK(SparsePrivateUse1, SparseCPU)
FALLBACK(SparseCsrPrivateUse1, SparseCsrCPU)
FALLBACK(QuantizedPrivateUse1, QuantizedCPU)
FALLBACK(NestedTensorPrivateUse1, NestedTensorCPU)
#undef FALLBACK

}  // namespace

void run_on_cpu(const c10::OperatorHandle& op, Stack* stack) {
  launch_fallback(op, facts_of(op), DispatchKey::CPU, stack);
}

// An explicit kernel for each operator, because a composite kernel would win over a backend fallback.
void register_fallbacks() {
  auto library = [](DispatchKey key) {
    return new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
  };
  static auto* dense = library(DispatchKey::PrivateUse1);
  static const std::pair<DispatchKey, torch::Library*> others[] = {
      {DispatchKey::SparseCPU, library(DispatchKey::SparsePrivateUse1)},
      {DispatchKey::SparseCsrCPU, library(DispatchKey::SparseCsrPrivateUse1)},
      {DispatchKey::QuantizedCPU, library(DispatchKey::QuantizedPrivateUse1)},
      {DispatchKey::NestedTensorCPU, library(DispatchKey::NestedTensorPrivateUse1)}};
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    const auto op = dispatcher.findOp(name);
    if (!op.has_value() || !op->hasSchema()) continue;
    const std::string full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    auto kernel = [&](DispatchKey host) {
      return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<CpuKernel>(*op, host));
    };
    if (wants_cpu_kernel(*op)) dense->impl(full.c_str(), kernel(DispatchKey::CPU));
    if (wants_composite_kernel(*op)) {
      dense->impl(full.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<CompositeKernel>(*op)));
    }
    std::vector<size_t> required;
    for (size_t i = 0; i < op->schema().arguments().size(); ++i) {
      if (must_be_tensor(op->schema().arguments()[i])) required.push_back(i);
    }
    for (const auto& [host, other] : others) {
      if (op->hasKernelForDispatchKey(host)) {
        other->impl(full.c_str(), kernel(host));
      } else if (required.size() > 1 && made_of_others(*op) && op->hasComputedKernelForDispatchKey(host)) {
        auto checked = std::make_unique<CompositeOfLayout>(required, host);
        other->impl(full.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::move(checked)));
      }
    }
  }
}

}  // namespace softnpu
