#include "torch/dispatch/launch.h"

#include <ATen/core/enum_tag.h>

#include <shared_mutex>

#include "device/device.h"
#include "device/faults.h"
#include "torch/dispatch/cpu_alias.h"
#include "torch/dispatch/ivalues.h"
#include "torch/dispatch/kernel_frame.h"
#include "torch/dispatch/launch_hooks.h"
#include "torch/graph/recording.h"
#include "torch/sanitizer/stage.h"

namespace softnpu {

namespace {

thread_local bool inside = false;

int device_of(const Stack& stack, size_t arguments) {
  int device = -1;
  each_tensor(stack, arguments, [&](const at::Tensor& tensor) {
    if (device < 0 && on_npu(tensor)) device = tensor.device().index();
  });
  return device < 0 ? current_device() : device;
}

std::string label_of(const c10::FunctionSchema& schema) {
  if (schema.name().rfind("npu::", 0) != 0) return schema.name();
  const std::string name = schema.name().substr(5);
  return schema.overload_name().empty() ? name : name + "." + schema.overload_name();
}

uint32_t stages_of(const OperatorTraits& traits, bool works) {
  if (!works) return kCaptureStage | kTraceStage;
  return traits.product == OperatorTraits::kNone ? ~uint32_t{kRoundStage} : ~0u;
}

bool waits_for_result(const c10::OperatorHandle& handle) {
  return handle.hasTag(at::Tag::data_dependent_output) || handle.hasTag(at::Tag::dynamic_output_shape);
}

// What an operator does to each argument, by its schema and the facts beyond it. Of what it writes in part it does not
// read the rest; and which part operators of other libraries read of what they write (caches) is not known.
std::vector<uint8_t> accesses_of(const c10::FunctionSchema& schema, const OperatorTraits& traits) {
  std::vector<uint8_t> found;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    const bool silently = std::find(traits.writes.begin(), traits.writes.end(), i) != traits.writes.end();
    const bool is_written = writes(argument) || silently;
    const bool unread = traits.overwrites || traits.reads_some || schema.name().rfind("aten::", 0) != 0;
    const bool is_read = !argument.is_out() && !(is_written && unread);
    const auto some = traits.reads_some ? Operation::kSome : 0;
    found.push_back(
        static_cast<uint8_t>((is_read ? Operation::kReads : 0) | (is_written ? Operation::kWrites : 0) | some));
  }
  return found;
}

}  // namespace

InsideLaunch::InsideLaunch() : before_(std::exchange(inside, true)) {}
InsideLaunch::~InsideLaunch() { inside = before_; }

// --- the stages ----------------------------------------------------------------------------------------------------

void launch(Task& task) {
  const uint32_t asked = Stages::asked() & task.stages();
  if (asked == 0 || inside) return task.run();
  const InsideLaunch guard;
  const int device = task.device();
  const StreamId stream = current_stream(device);
  if ((asked & kFaultStage) != 0) raise_fault(device);
  if ((asked & kUpdateStage) != 0 && task.update(stream)) return;
  if ((asked & kQueueStage) != 0 && !draining() && Queues::all().blocked(device, stream)) {
    if (task.queue(stream)) return;
  }
  if ((asked & kCaptureStage) != 0) {
    if (Capture* capture = Capture::of(device, stream)) {
      capture->check_valid();
      if (task.record(*capture, stream)) return;
      const Recording recording(*capture, task.name(), stream);
      return run_task(task);
    }
  }
  run_task(task);
}

void run_task(Task& task) {
  const uint32_t asked = Stages::asked() & task.stages();
  std::optional<SanitizedRun> sanitized;
  if ((asked & kSanitizeStage) != 0) sanitized.emplace(task);
  if ((asked & kHookStages) != 0) {
    const c10::impl::ExcludeDispatchKeyGuard below(kAboveBackend);
    task.before(asked);
  }
  if ((asked & kTraceStage) != 0) {
    TraceScope trace(task.name(), task.device());
    if (trace.wants_tensors()) task.each_input([&](const at::Tensor& tensor) { trace.input(tensor); });
    trace.ranks(task.ranks());
    task.run();
    if (trace.wants_tensors()) task.each_output([&](const at::Tensor& tensor) { trace.output(tensor); });
  } else {
    task.run();
  }
  if ((asked & kHookStages) != 0) {
    const c10::impl::ExcludeDispatchKeyGuard below(kAboveBackend);
    task.after(asked);
  }
  if (sanitized) sanitized->finish();
}

// --- operators -----------------------------------------------------------------------------------------------------

Operation::Operation(const c10::OperatorHandle& handle)
    : handle(handle),
      name(handle.schema().name()),
      label(label_of(handle.schema())),
      arguments(handle.schema().arguments().size()),
      returns(handle.schema().returns().size()),
      traits(traits_of(name)),
      works(!traits.describes && !is_view(handle.schema())),
      stages(stages_of(traits, works)),
      waits(waits_for_result(handle)),
      accesses(accesses_of(handle.schema(), traits)) {}

const Operation& operation_of(const c10::OperatorHandle& handle) {
  static auto* all = new std::unordered_map<c10::OperatorHandle, std::unique_ptr<Operation>>;
  static std::shared_mutex mutex;
  {
    const std::shared_lock lock(mutex);
    const auto found = all->find(handle);
    if (found != all->end()) return *found->second;
  }
  const std::unique_lock lock(mutex);
  auto& operation = (*all)[handle];
  if (!operation) operation = std::make_unique<Operation>(handle);
  return *operation;
}

const Operation* find_operation(const std::string& name, const std::string& overload) {
  const auto handle = c10::Dispatcher::singleton().findSchema({name, overload});
  return handle.has_value() ? &operation_of(*handle) : nullptr;
}

c10::OperatorHandle find_aten(const std::string& name) {
  const size_t dot = name.find('.');
  const std::string overload = dot == std::string::npos ? "" : name.substr(dot + 1);
  return c10::Dispatcher::singleton().findSchemaOrThrow(("aten::" + name.substr(0, dot)).c_str(), overload.c_str());
}

OperatorTask::OperatorTask(const Operation& operation, Stack* stack, Kernel kernel)
    : operation_(operation),
      stack_(stack),
      kernel_(std::move(kernel)),
      device_(device_of(*stack, operation.arguments)) {}

void OperatorTask::each_input(Each each) const { each_tensor(*stack_, operation_.arguments, each); }
void OperatorTask::each_output(Each each) const { each_tensor(*stack_, operation_.returns, each); }

namespace {

// beta * self + ...: a beta of 0 leaves the first argument unread.
bool leaves_first_unread(const Operation& operation, const Stack& stack) {
  if (operation.traits.product != OperatorTraits::kMatmul && operation.name.rfind("aten::addr", 0) != 0) return false;
  const std::optional<int> beta = operation.handle.schema().argumentIndexWithName("beta");
  if (!beta.has_value()) return false;
  const c10::IValue& value = stack[stack.size() - operation.arguments + static_cast<size_t>(*beta)];
  return value.isScalar() && value.toScalar().equal(0);
}

}  // namespace

void OperatorTask::each_access(EachAccess each) const {
  const size_t first = stack_->size() - operation_.arguments;
  const bool first_unread = leaves_first_unread(operation_, *stack_);
  for (size_t i = 0; i < operation_.arguments; ++i) {
    uint8_t does = operation_.accesses[i];
    if (i == 0 && first_unread) does &= static_cast<uint8_t>(~Operation::kReads);
    each_tensor((*stack_)[first + i], [&](const at::Tensor& tensor) {
      if (!tensor.defined()) return;
      each(tensor, (does & Operation::kReads) != 0, (does & Operation::kWrites) != 0, (does & Operation::kSome) != 0);
    });
  }
}

}  // namespace softnpu
