// Runs for shapes alone (`softnpu plan`, SOFTNPU_COMPUTE=0): every operator gives results of the right shapes,
// allocated as always, and computes nothing.
//
// Inside a kernel (KernelFrame) each call of an operator on the CPU is caught by a dispatch key, and answered here:
// composite operators run as they are, and what they call is caught again; views and empty tensors are made; the rest
// is asked for its shapes (its Meta kernel), and its results are allocated like the CPU kernel allocates them. So a
// kernel's temporaries are allocated too. What is known of values is in values.h.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <utility>

#include "device/stages.h"

namespace softnpu::plan {

inline bool on() noexcept { return Stages::asked(kPlanStage); }

// PyTorch keeps it for other libraries; above all keys that a kernel's calls pass.
inline constexpr c10::DispatchKey kKey = c10::DispatchKey::DeferredInit;

// While one lives in such a run, operators that this thread calls are caught.
class Catch {
 public:
  Catch() : on_(on() && !c10::impl::tls_is_dispatch_key_included(kKey)) {
    if (on_) c10::impl::tls_set_dispatch_key_included(kKey, true);
  }
  ~Catch() {
    if (on_) c10::impl::tls_set_dispatch_key_included(kKey, false);
  }
  Catch(const Catch&) = delete;

 private:
  const bool on_;
};

// While one lives in such a run, kernels of csrc/kernels leave out their loops.
class LeaveData {
 public:
  LeaveData() : before_(std::exchange(leaves_data, leaves_data || on())) {}
  ~LeaveData() { leaves_data = before_; }
  LeaveData(const LeaveData&) = delete;

 private:
  const bool before_;
};

// An operator on CPU tensors, without its data. `keys`: those of its CPU kernel.
void answer(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// The CPU kernel of an operator, or its shapes alone.
inline void call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (C10_UNLIKELY(on())) {
    answer(op, keys, stack);
  } else {
    op.redispatchBoxed(keys, stack);
  }
}

}  // namespace softnpu::plan
