// The frame in which a kernel runs, and the profiler's record of it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <string_view>

#include "device/trace.h"
#include "torch/memory/allocator.h"
#include "torch/plan/plan.h"

namespace softnpu {

// The dispatch keys above a backend's.
inline constexpr c10::DispatchKeySet kAboveBackend =
    c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;

// While one lives, this thread's CPU allocations come from the device, and dispatch stays below autograd and autocast.
class KernelFrame {
 public:
  explicit KernelFrame(int device) : scope_(device), below_(kAboveBackend) {}
  KernelFrame(const KernelFrame&) = delete;

 private:
  const KernelScope scope_;
  const c10::impl::ExcludeDispatchKeyGuard below_;
  const plan::Catch planned_;
};

// One record of the log of tasks, open while it lives.
class TraceScope {
 public:
  TraceScope(std::string_view name, int device);
  ~TraceScope();
  TraceScope(const TraceScope&) = delete;

  static bool wants_tensors() { return Trace::all().shapes(); }
  void input(const at::Tensor& tensor) { note(tensor, record_.inputs); }
  void output(const at::Tensor& tensor) { note(tensor, record_.outputs); }
  void ranks(std::shared_ptr<const std::vector<int64_t>> members) { record_.ranks = std::move(members); }

 private:
  static void note(const at::Tensor& tensor, std::vector<TensorNote>& to);
  TaskRecord record_;
};

}  // namespace softnpu
