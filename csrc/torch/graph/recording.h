// The recording of one task: the CPU kernels that it calls, as actions that a replay runs again.
#pragma once

#include <ATen/record_function.h>

#include <optional>

#include "torch/graph/capture.h"

namespace softnpu {

// The steps recorded by this thread while it lives belong to one operator of a task group.
class InGroup {
 public:
  explicit InGroup(std::shared_ptr<TaskStep::Operator> op);
  ~InGroup();
  InGroup(const InGroup&) = delete;
};

// While one lives, PyTorch's record functions tell of every operator that this thread calls (they serve the profiler
// too); a call of an operator with a CPU kernel becomes an action, and what it calls in turn belongs to it.
class Recording {
 public:
  Recording(Capture& capture, std::string_view name, StreamId stream);
  ~Recording();
  Recording(const Recording&) = delete;
  static Recording* current();  // of this thread

  // Makes the call, whose arguments end the stack, and records it.
  void call(const c10::OperatorHandle& op, Stack* stack, const std::function<void(Stack*)>& call);
  void reads_data() { opaque_ = true; }  // replay calls the whole kernel, since its calls may differ
  bool opaque() const { return opaque_; }
  void derived(std::shared_ptr<GraphRandom> random, uint64_t offset, const at::Generator& cpu);
  void replace(PythonCall call);
  Capture& capture() { return capture_; }
  at::Tensor keep(const at::Tensor& tensor);

 private:
  struct Open;  // a call that is being made
  struct Leaf;  // one whose inner calls are not recorded
  static std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& function);
  static void on_end(const at::RecordFunction& function, at::ObserverContext* context);
  KernelCall prepare(const c10::OperatorHandle& op, c10::ArrayRef<const c10::IValue> given,
                     std::function<void(Stack*)> call);
  void finish(KernelCall record, const std::vector<c10::IValue>& given, const Stack& stack, size_t returns);
  bool is_constant(const at::Tensor& tensor) const;
  void set_first(const at::Tensor& constant);

  Capture& capture_;
  const std::string name_;
  const StreamId stream_;
  const int exceptions_;
  const at::RecordFunctionGuard enabled_{true};
  at::CallbackHandle handle_;
  int inner_ = 0;  // more than 0: inside a recorded call
  std::vector<Action> actions_;
  // Memory that recorded calls have written. What a call reads elsewhere in the pool, and not from an argument of
  // the task, is a constant: the host wrote it.
  std::set<const void*> written_;
  const NoticeFresh fresh_{written_};
  bool opaque_ = false;
};

}  // namespace softnpu
