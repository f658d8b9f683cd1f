// One device task: the frame in which a kernel runs.
//
// While a Task lives, this thread's CPU allocations come from the device (KernelScope), dispatch stays below autograd
// and autocast, the profiler's record is open, and, on a capturing stream, every call of a CPU kernel is recorded.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <memory>
#include <optional>
#include <string_view>

#include "device/trace.h"
#include "torch/allocator.h"

namespace softnpu {

// The dispatch keys above a backend's.
inline constexpr c10::DispatchKeySet kAboveBackend =
    c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;

class Recording;

class Task {
 public:
  Task(std::string_view name, int device);
  ~Task();
  Task(const Task&) = delete;

  Recording* recording() const { return recording_; }  // on a capturing stream, else nullptr
  bool wants_tensors() const { return record_.has_value() && Trace::all().shapes(); }
  void input(const at::Tensor& tensor) {
    if (wants_tensors()) note(tensor, record_->inputs);
  }
  void output(const at::Tensor& tensor) {
    if (wants_tensors()) note(tensor, record_->outputs);
  }

 private:
  static void note(const at::Tensor& tensor, std::vector<TensorNote>& to);
  void open_record(std::string_view name, int device);

  const KernelScope scope_;
  const c10::impl::ExcludeDispatchKeyGuard below_;
  std::optional<TaskRecord> record_;
  std::unique_ptr<Recording> opened_;
  Recording* recording_ = nullptr;
};

}  // namespace softnpu
