// The one launch. Everything that runs on the device passes `launch`: PyTorch's operators (fast path and boxed
// fallback), kernels written by hand, kernels in Python, and collectives.
//
// The stages, in order; each costs one test of one word if nobody asked for it (device/stages.h):
//   1. faults      an injected fault of the device raises
//   2. update      in an open update, the task's arguments replace those of a task group
//   3. queue       on a blocked stream, the task waits for its turn
//   4. record      on a capturing stream, the task becomes a step of the graph
//   5. sanitize    what the task reads and writes, and in which order with others (torch/sanitizer)
//   6. hooks       unsafe arguments raise; dumps see the arguments; products round theirs (HF32)
//   7. trace       the profiler's record
//   8. run         the kernel, or its shapes alone (torch/plan)
//   9. hooks       wrong products on demand; saturation; dumps see the results
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/boxing/impl/boxing.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/FunctionRef.h>

#include <functional>
#include <optional>

#include "device/stages.h"
#include "torch/dispatch/operator_traits.h"
#include "torch/graph/capture.h"

namespace softnpu {

// A piece of work for one device.
class Task {
 public:
  using Each = c10::function_ref<void(const at::Tensor&)>;
  virtual ~Task() = default;

  virtual std::string_view name() const = 0;
  virtual int device() const = 0;
  virtual uint32_t stages() const { return ~0u; }  // those that can concern it
  virtual void run() = 0;

  virtual void each_input(Each) const {}
  virtual void each_output(Each) const {}
  // What it reads and writes of its inputs; `some`: which part of it depends on data.
  using EachAccess = c10::function_ref<void(const at::Tensor&, bool reads, bool writes, bool some)>;
  virtual void each_access(EachAccess each) const {
    each_input([&](const at::Tensor& tensor) { each(tensor, true, false, true); });
  }
  virtual bool touches_host() const { return false; }  // host memory among its inputs is read or written by the device
  virtual bool holds_host() const { return false; }    // the host waits for it
  virtual void before(uint32_t) {}                     // hooks, with the stages that were asked for
  virtual void after(uint32_t) {}

  // A stage that takes the task over says so; the task is done then, as far as the caller can see.
  virtual bool update(StreamId) { return false; }
  virtual bool queue(StreamId) = 0;                          // false: it runs now
  virtual bool record(Capture&, StreamId) { return false; }  // false: it runs now, and its calls are recorded

  // Of a collective: the ranks of its group.
  virtual std::shared_ptr<const std::vector<int64_t>> ranks() const { return nullptr; }
};

void launch(Task& task);

// The last stages: of a task whose turn has come.
void run_task(Task& task);

// What this thread launches while one lives is part of what it runs already, and passes no stage.
class InsideLaunch {
 public:
  InsideLaunch();
  ~InsideLaunch();
  InsideLaunch(const InsideLaunch&) = delete;

 private:
  const bool before_;
};

// --- operators -----------------------------------------------------------------------------------------------------

// What a launch knows of an operator, worked out once.
struct Operation {
  explicit Operation(const c10::OperatorHandle& handle);
  const c10::OperatorHandle handle;
  const std::string name;   // qualified, without overload
  const std::string label;  // as profiles and graphs call it: aten::add, npu_rms_norm
  const size_t arguments, returns;
  const OperatorTraits& traits;
  const bool works;       // false: it only describes memory
  const uint32_t stages;  // those that can concern it
  const bool waits;       // the host waits for the shape or the value of its result
  enum : uint8_t { kReads = 1, kWrites = 2, kSome = 4 };
  const std::vector<uint8_t> accesses;  // by argument
  bool asked() const noexcept { return Stages::asked(stages); }
};

const Operation& operation_of(const c10::OperatorHandle& handle);
const Operation* find_operation(const std::string& name, const std::string& overload);

// NPU tensors in, NPU tensors out, on a stack.
using Kernel = std::function<void(Stack*)>;

// An operator with its arguments on a stack, where `launch` leaves the results.
class OperatorTask final : public Task {
 public:
  OperatorTask(const Operation& operation, Stack* stack, Kernel kernel);
  std::string_view name() const override { return operation_.label; }
  int device() const override { return device_; }
  uint32_t stages() const override { return operation_.stages; }
  void run() override { kernel_(stack_); }
  void each_input(Each each) const override;
  void each_output(Each each) const override;
  void each_access(EachAccess each) const override;
  bool touches_host() const override { return operation_.traits.copies; }
  bool holds_host() const override { return operation_.waits; }
  void before(uint32_t asked) override;
  void after(uint32_t asked) override;
  bool update(StreamId stream) override;
  bool queue(StreamId stream) override;
  bool record(Capture& capture, StreamId stream) override;

 private:
  const Operation& operation_;
  Stack* const stack_;
  Kernel kernel_;
  const int device_;
  bool was_finite_ = true;
};

// A kernel written by hand, as PyTorch calls it: `m.impl(name, TORCH_FN((Launched<&kernel>::call)))` after `of(name)`.
template <auto kernel>
struct Launched;

template <class Result, class... Args, Result (*kernel)(Args...)>
struct Launched<kernel> {
  static inline const Operation* operation = nullptr;

  static Result call(Args... args) {
    if (C10_LIKELY(!operation->asked())) return kernel(std::forward<Args>(args)...);
    Stack stack;
    stack.reserve(sizeof...(Args));
    (torch::jit::push_one(stack, args), ...);
    static const auto boxed = c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(kernel));
    OperatorTask task(*operation, &stack, [](Stack* on) {
      boxed.callBoxed(operation->handle, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), on);
    });
    launch(task);
    if constexpr (std::is_reference_v<Result>) {
      return written<Args...>(args...);
    } else if constexpr (!std::is_void_v<Result>) {
      return c10::impl::PopResult<Result>::call(stack);
    }
  }

 private:
  // The first argument that the kernel writes.
  template <class First, class... Rest>
  static at::Tensor& written(std::remove_reference_t<First>& first, std::remove_reference_t<Rest>&... rest) {
    if constexpr (std::is_same_v<First, at::Tensor&>) {
      return first;
    } else {
      return written<Rest...>(rest...);
    }
  }
};

c10::OperatorHandle find_aten(const std::string& name);  // "add.Tensor"

// Registers a kernel written by hand so that its calls are launches.
#define SOFTNPU_LAUNCHED(m, name, function)                                                          \
  (::softnpu::Launched<&function>::operation = &::softnpu::operation_of(::softnpu::find_aten(name)), \
   (m).impl(name, TORCH_FN((::softnpu::Launched<&function>::call))))

}  // namespace softnpu
