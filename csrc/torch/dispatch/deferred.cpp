#include "torch/dispatch/deferred.h"

#include <ATen/core/enum_tag.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "device/device.h"
#include "torch/dispatch/cpu_alias.h"
#include "torch/dispatch/ivalues.h"
#include "torch/dispatch/kernel_frame.h"
#include "torch/dispatch/launch.h"
#include "torch/dispatch/reads_data.h"
#include "torch/graph/recording.h"
#include "torch/runtime/sync.h"

namespace softnpu {

namespace {

using at::Tensor;
using c10::IValue;
using Key = std::pair<int, StreamId>;

std::string full_name(const c10::OperatorHandle& op) {
  const auto& name = op.operator_name();
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

std::vector<IValue> arguments_of(const c10::OperatorHandle& op, const Stack& stack) {
  const auto count = static_cast<int64_t>(op.schema().arguments().size());
  return {stack.end() - count, stack.end()};
}

void replace_arguments(const c10::OperatorHandle& op, Stack* stack, std::vector<IValue> results) {
  torch::jit::drop(*stack, op.schema().arguments().size());
  for (IValue& result : results) stack->push_back(std::move(result));
}

// An operator that returns what it was given to write.
bool returns_arguments(const c10::FunctionSchema& schema) {
  for (const auto& result : schema.returns()) {
    if (!writes(result)) return false;
  }
  return true;
}

std::vector<IValue> written(const c10::FunctionSchema& schema, const std::vector<IValue>& arguments) {
  std::vector<IValue> results;
  for (size_t i = 0; i < arguments.size() && results.size() < schema.returns().size(); ++i) {
    if (writes(schema.arguments()[i])) results.push_back(arguments[i]);
  }
  return results;
}

Tensor like(const Tensor& tensor, c10::Device device) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(device));
}

// --- blocked streams -----------------------------------------------------------------------------------------------

bool waits_by_itself(const c10::OperatorHandle& op, const std::vector<IValue>& arguments) {
  const std::string& name = op.operator_name().name;
  if (reads_data(op, c10::ArrayRef<const IValue>(arguments.data(), arguments.size()))) return true;
  if (name == "aten::_local_scalar_dense") return true;
  if (!traits_of(name).copies) return false;
  return on_npu(arguments[0].toTensor()) != on_npu(arguments[1].toTensor()) && !arguments[2].toBool();
}

// In a shuffled run every launch is deferred. Those that must run at their place in the program: random numbers are
// drawn in its order, and a copy to memory that is not pinned is done when it returns. Host memory is read at the
// launch.
bool can_wait(const c10::OperatorHandle& op, std::vector<IValue>& arguments) {
  if (op.hasTag(at::Tag::nondeterministic_seeded)) return false;
  if (!op.hasKernelForDispatchKey(c10::DispatchKey::Meta) &&
      !op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) &&
      !op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional) &&
      !returns_arguments(op.schema())) {
    return false;
  }
  const std::vector<uint8_t>& accesses = operation_of(op).accesses;
  bool host_result = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool is_written = (accesses[i] & Operation::kWrites) != 0;
    map_tensors(arguments[i], [&](Tensor tensor) {
      if (!tensor.defined() || !tensor.is_cpu() || is_pinned(base_of(tensor))) return tensor;
      host_result |= is_written;
      return is_written ? tensor : tensor.clone();
    });
  }
  return !host_result;
}

// New tensors of the shapes that the operator's shape function gives.
std::vector<IValue> promised(const c10::OperatorHandle& op, const std::vector<IValue>& arguments, c10::Device npu) {
  Stack stack(arguments.begin(), arguments.end());
  for (IValue& value : stack) {
    if (value.isDevice() && value.toDevice().type() == c10::kPrivateUse1) value = IValue(c10::Device(c10::kMeta));
    map_tensors(value, [](Tensor tensor) { return on_npu(tensor) ? like(tensor, c10::kMeta) : tensor; });
  }
  op.callBoxed(&stack);
  for (IValue& value : stack) {
    map_tensors(value, [&](const Tensor& tensor) { return tensor.defined() ? like(tensor, npu) : tensor; });
  }
  return {stack.begin(), stack.end()};
}

// An operator whose turn comes later: its results go where the promised ones are.
struct DeferredCall {
  const Operation* operation;
  Kernel kernel;
  std::vector<IValue> arguments, results;
  bool in_place;
  std::optional<sanitizer::Origin> origin;  // where it was launched

  AnyOf operator()() const {
    std::optional<sanitizer::From> from;
    if (origin.has_value()) from.emplace(*origin);
    const InsideLaunch guard;
    const c10::impl::ExcludeDispatchKeyGuard below(kAboveBackend);
    Stack stack(arguments.begin(), arguments.end());
    OperatorTask task(*operation, &stack, kernel);
    run_task(task);
    if (in_place) return {};
    std::vector<Tensor> promises;
    for (const IValue& value : results) {
      each_tensor(value, [&](const Tensor& tensor) { promises.push_back(tensor); });
    }
    size_t next = 0;
    for (const IValue& value : stack) {
      each_tensor(value, [&](const Tensor& tensor) {
        if (tensor.defined()) promises[next].copy_(tensor);
        ++next;
      });
    }
    return {};
  }
};

// --- task groups ---------------------------------------------------------------------------------------------------

struct Update {
  std::shared_ptr<TaskGroup> group;
  size_t next = 0;
};

struct Updates {
  std::mutex mutex;
  std::map<Key, Update> open;
};

Updates& updates() {
  static auto* all = new Updates;
  return *all;
}

void apply_update(const Operation& called, const Kernel& kernel, Stack* stack, Update& update, const Key& key) {
  const c10::OperatorHandle& op = called.handle;
  const auto& operators = update.group->operators;
  const std::string name = full_name(op);
  if (update.next >= operators.size() || operators[update.next]->name != name) {
    const std::string expected =
        update.next < operators.size() ? operators[update.next]->name : "graph_task_update_end";
    raise_acl("aclmdlRICaptureTaskUpdateBegin", acl::kGroupInterrupted,
              "the update of task group " + std::to_string(update.group->id) + " on stream " +
                  std::to_string(key.second) + " expects " + expected + " next, but " + name + " was launched.");
  }
  const auto operation = operators[update.next++];
  auto updated = std::make_shared<const TaskStep::Update>(TaskStep::Update{kernel, arguments_of(op, *stack)});
  std::vector<IValue> results;
  if (returns_arguments(op.schema())) {
    results = written(op.schema(), updated->arguments);
  } else {  // the graph's own results stay its own
    Stack shapes;
    for (const Tensor& result : operation->results) shapes.emplace_back(like(result, result.device()));
    const auto returned = op.schema().returns();
    const bool list = returned.size() == 1 && !returned[0].type()->isSubtypeOf(*c10::TensorType::get());
    if (list) {
      c10::List<Tensor> all;
      for (const IValue& value : shapes) all.push_back(value.toTensor());
      results = {IValue(all)};
    } else {
      results.assign(shapes.begin(), shapes.end());
    }
  }
  replace_arguments(op, stack, std::move(results));
  Queues::all().launch(key.first, key.second, [operation, updated] {
    const std::lock_guard<std::mutex> lock(operation->mutex);
    operation->updated = updated;
    return AnyOf{};
  });
}

}  // namespace

bool OperatorTask::update(StreamId stream) {
  const Key key{device_, stream};
  const std::unique_lock<std::mutex> lock(updates().mutex);
  const auto found = updates().open.find(key);
  if (found == updates().open.end()) return false;
  apply_update(operation_, kernel_, stack_, found->second, key);
  return true;
}

bool OperatorTask::queue(StreamId stream) {
  const c10::OperatorHandle& op = operation_.handle;
  std::vector<IValue> arguments = arguments_of(op, *stack_);
  if (waits_by_itself(op, arguments)) return false;
  if (Queues::shuffled() && !can_wait(op, arguments)) {
    wait_for_stream(device_, stream, operation_.label.c_str());
    return false;
  }
  const c10::impl::ExcludeDispatchKeyGuard below(kAboveBackend);
  const bool in_place = returns_arguments(op.schema());
  std::vector<IValue> results =
      in_place ? written(op.schema(), arguments)
               : promised(op, arguments, {c10::kPrivateUse1, static_cast<c10::DeviceIndex>(device_)});
  replace_arguments(op, stack_, results);
  Queues::all().launch(
      device_, stream,
      DeferredCall{&operation_, kernel_, std::move(arguments), std::move(results), in_place,
                   sanitizer::on() ? std::make_optional(sanitizer::Sanitizer::get().origin()) : std::nullopt});
  return true;
}

// In a task group the operator is remembered, beside the steps that it records.
bool OperatorTask::record(Capture& capture, StreamId stream) {
  const auto group = operation_.works ? capture.group(stream) : nullptr;
  if (group == nullptr) return false;
  auto operation = std::make_shared<TaskStep::Operator>();
  operation->name = full_name(operation_.handle);
  operation->operation = &operation_;
  const std::vector<IValue> arguments = arguments_of(operation_.handle, *stack_);
  {
    const InGroup member(operation);
    const Recording recording(capture, operation_.label, stream);
    run_task(*this);
  }
  each_new_tensor(*stack_, operation_.returns, arguments,
                  [&](const Tensor& result) { operation->results.push_back(capture.keep(result)); });
  group->operators.push_back(std::move(operation));
  return true;
}

void update_begin(int device, StreamId stream, const std::shared_ptr<TaskGroup>& group) {
  TORCH_CHECK(group != nullptr, "graph_task_update_begin: handle must be what graph_task_group_end returned");
  const std::lock_guard<std::mutex> lock(updates().mutex);
  const auto [at, fresh] = updates().open.try_emplace({device, stream}, Update{group});
  if (!fresh) {
    raise_acl("aclmdlRICaptureTaskUpdateBegin", acl::kGroupStatus,
              "an update is open on stream " + std::to_string(stream) + " already; end it first.");
  }
  Stages::set(kUpdateStage, true);
}

void update_end(int device, StreamId stream) {
  const std::lock_guard<std::mutex> lock(updates().mutex);
  const auto found = updates().open.find({device, stream});
  if (found == updates().open.end()) {
    raise_acl("aclmdlRICaptureTaskUpdateEnd", acl::kGroupStatus,
              "no update is open on stream " + std::to_string(stream) + ".");
  }
  const Update update = std::move(found->second);
  updates().open.erase(found);
  Stages::set(kUpdateStage, !updates().open.empty());
  if (update.next < update.group->operators.size()) {
    raise_acl("aclmdlRICaptureTaskUpdateEnd", acl::kGroupStatus,
              "the task group has " + std::to_string(update.group->operators.size()) + " operator(s), but " +
                  std::to_string(update.next) + " were updated; the next one is " +
                  update.group->operators[update.next]->name + ".");
  }
}

}  // namespace softnpu
