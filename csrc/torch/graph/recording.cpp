#include "torch/graph/recording.h"

#include <ATen/core/enum_tag.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <shared_mutex>
#include <string_view>

#include "torch/dispatch/cpu_alias.h"
#include "torch/dispatch/ivalues.h"
#include "torch/dispatch/operator_traits.h"
#include "torch/dispatch/reads_data.h"

namespace softnpu {

namespace {

using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;

thread_local Recording* current_recording = nullptr;
thread_local std::shared_ptr<TaskStep::Operator> grouped_operator;

// Operators that do not care what they write over.
bool overwrites(const c10::FunctionSchema& schema, size_t i) {
  return schema.arguments()[i].is_out() || traits_of(schema.name()).overwrites ||
         schema.name().rfind("softnpu::", 0) == 0;
}

bool may_write(const c10::FunctionSchema& schema, size_t i) {
  const auto& silently = traits_of(schema.name()).writes;
  return writes(schema.arguments()[i]) || std::find(silently.begin(), silently.end(), i) != silently.end();
}

// --- the calls inside a kernel -------------------------------------------------------------------------------------

enum class Treatment { Composite, Silent, ReadsData, Recorded };

Treatment classify(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  const std::string& name = schema.name();
  const bool leaf = op.hasKernelForDispatchKey(DispatchKey::CPU) ||
                    op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
                    op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional);
  if (!leaf && op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd)) return Treatment::Composite;
  if (op.hasTag(at::Tag::data_dependent_output) || op.hasTag(at::Tag::dynamic_output_shape))
    return Treatment::ReadsData;
  if (name.rfind("aten::empty", 0) == 0 || name.rfind("aten::new_empty", 0) == 0) return Treatment::Silent;
  if (op.hasTag(at::Tag::inplace_view) || is_view(schema)) return Treatment::Silent;
  bool tensors = false;
  for (size_t i = 0; i < schema.arguments().size(); ++i) tensors |= may_write(schema, i);
  for (const auto& result : schema.returns()) {
    tensors |=
        result.type()->isSubtypeOf(*c10::TensorType::get()) || result.type()->isSubtypeOf(*c10::ListType::ofTensors());
  }
  return tensors ? Treatment::Recorded : Treatment::Silent;
}

Treatment treatment_of(const c10::OperatorHandle& op) {
  static auto* treatments = new std::unordered_map<c10::OperatorHandle, Treatment>;
  static std::shared_mutex mutex;
  {
    const std::shared_lock lock(mutex);
    const auto found = treatments->find(op);
    if (found != treatments->end()) return found->second;
  }
  const std::unique_lock lock(mutex);
  return treatments->emplace(op, classify(op)).first->second;
}

bool has_npu_tensor(const Stack& stack, size_t count) {
  bool found = false;
  each_tensor(stack, count, [&](const Tensor& tensor) { found |= on_npu(tensor); });
  return found;
}

}  // namespace

// --- one task ------------------------------------------------------------------------------------------------------

Recording* Recording::current() { return current_recording; }

Recording::Recording(Capture& capture, std::string_view name, StreamId stream)
    : capture_(capture), name_(name), stream_(stream), exceptions_(std::uncaught_exceptions()) {
  current_recording = this;
  handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&Recording::on_start, &Recording::on_end)
                                           .needsInputs(true)
                                           .needsOutputs(true)
                                           .scopes({at::RecordScope::FUNCTION}));
}

Recording::~Recording() {
  at::removeCallback(handle_);
  current_recording = nullptr;
  if (std::uncaught_exceptions() > exceptions_) return;  // the kernel failed: it is not part of the graph
  const bool follows = grouped_operator != nullptr && grouped_operator->steps++ > 0;
  capture_.add(stream_, TaskStep{name_, std::move(actions_), grouped_operator, follows});
}

InGroup::InGroup(std::shared_ptr<TaskStep::Operator> op) { grouped_operator = std::move(op); }
InGroup::~InGroup() { grouped_operator.reset(); }

// --- its calls -----------------------------------------------------------------------------------------------------

struct Recording::Leaf : at::ObserverContext {
  explicit Leaf(Recording& recording) : recording(recording) { ++recording.inner_; }
  ~Leaf() override { --recording.inner_; }
  Recording& recording;
};

struct Recording::Open final : Leaf {
  Open(Recording& recording, KernelCall&& call, std::vector<IValue> given, size_t returns)
      : Leaf(recording),
        record(std::move(call)),
        given(std::move(given)),
        returns(returns),
        exceptions(std::uncaught_exceptions()) {
    log.emplace(record.allocations);
  }
  KernelCall record;
  const std::vector<IValue> given;
  const size_t returns;
  const int exceptions;
  std::optional<LogAllocations> log;
};

std::unique_ptr<at::ObserverContext> Recording::on_start(const at::RecordFunction& function) {
  Recording* recording = current_recording;
  if (recording == nullptr || recording->inner_ > 0) return nullptr;
  const auto name = function.operator_name();
  const auto op = name.has_value() ? c10::Dispatcher::singleton().findSchema(*name) : std::nullopt;
  if (!op.has_value()) return nullptr;
  Treatment treatment = treatment_of(*op);
  if (treatment == Treatment::ReadsData && !softnpu::reads_data(*op, function.inputs()))
    treatment = Treatment::Recorded;
  if (treatment == Treatment::Composite) return nullptr;  // what it calls is recorded
  if (treatment == Treatment::ReadsData) recording->reads_data();
  if (treatment != Treatment::Recorded) return std::make_unique<Leaf>(*recording);
  const auto inputs = function.inputs();
  std::vector<IValue> given(inputs.begin(), inputs.end());
  if (has_npu_tensor(given, given.size())) return nullptr;  // comes back with CPU aliases
  auto again = [op = *op](Stack* on) {
    const c10::impl::ExcludeDispatchKeyGuard plain(c10::python_ks);
    op.callBoxed(on);
  };
  KernelCall record = recording->prepare(*op, inputs, std::move(again));
  return std::make_unique<Open>(*recording, std::move(record), std::move(given), op->schema().returns().size());
}

void Recording::on_end(const at::RecordFunction& function, at::ObserverContext* context) {
  auto* open = dynamic_cast<Open*>(context);
  if (open == nullptr) return;
  open->log.reset();
  if (std::uncaught_exceptions() > open->exceptions) return;
  open->recording.finish(std::move(open->record), open->given, function.outputs(), open->returns);
}

KernelCall Recording::prepare(const c10::OperatorHandle& op, c10::ArrayRef<const IValue> given,
                              std::function<void(Stack*)> call) {
  const auto& schema = op.schema();
  KernelCall record{schema.name(), std::move(call), std::vector<IValue>(given.begin(), given.end()), {}, {}};
  const bool copies = schema.name() == "aten::copy_";
  for (size_t i = 0; i < record.arguments.size(); ++i) {
    const bool is_written = may_write(schema, i);
    map_tensors(record.arguments[i], [&](const Tensor& tensor) {
      if (!plain(tensor)) return tensor;
      const bool constant = is_constant(tensor);
      if (!is_written) {
        const bool from_host = copies && !capture_.in_pool(tensor);  // a copy reads the host's memory each time
        return constant && !from_host ? value_of(tensor) : capture_.keep(tensor);
      }
      if (constant && capture_.in_pool(tensor) && !overwrites(schema, i)) set_first(tensor);
      capture_.save(tensor);
      written_.insert(base_of(tensor));
      return capture_.keep(tensor);
    });
  }
  return record;
}

void Recording::finish(KernelCall record, const std::vector<IValue>& given, const Stack& stack, size_t returns) {
  each_new_tensor(stack, returns, given, [&](const Tensor& result) {
    written_.insert(base_of(result));
    record.results.push_back(capture_.keep(result));
  });
  actions_.emplace_back(std::move(record));
}

void Recording::call(const c10::OperatorHandle& op, Stack* stack, const std::function<void(Stack*)>& call) {
  const size_t first = stack->size() - op.schema().arguments().size();
  const std::vector<IValue> given(stack->begin() + static_cast<int64_t>(first), stack->end());
  KernelCall record = prepare(op, c10::ArrayRef<const IValue>(given.data(), given.size()), call);
  {
    const Leaf leaf(*this);
    const LogAllocations log(record.allocations);
    call(stack);
  }
  finish(std::move(record), given, *stack, op.schema().returns().size());
}

void Recording::replace(PythonCall call) {
  for (const Action& action : actions_) {
    const auto* draw = std::get_if<Reseed>(&action);
    if (draw == nullptr) continue;
    call.random = draw->random;
    call.offset = draw->offset;
    break;
  }
  actions_.clear();
  actions_.emplace_back(std::move(call));
}

bool Recording::is_constant(const Tensor& tensor) const {
  return !on_npu(tensor) && !is_alias(tensor) && written_.count(base_of(tensor)) == 0;
}

Tensor Recording::keep(const Tensor& tensor) {
  return plain(tensor) && is_constant(tensor) && capture_.in_pool(tensor) ? value_of(tensor) : capture_.keep(tensor);
}

// A constant that is about to be changed in place: every replay begins with its first value.
void Recording::set_first(const Tensor& constant) {
  actions_.emplace_back(HostWork{
      [from = value_of(constant), to = extent(constant)] { std::memcpy(to.first, from.const_data_ptr(), to.second); }});
}

void Recording::derived(std::shared_ptr<GraphRandom> random, uint64_t offset, const at::Generator& cpu) {
  const uint64_t from_start = offset - random->start;
  actions_.emplace_back(Reseed{std::move(random), from_start, cpu});
}

}  // namespace softnpu
