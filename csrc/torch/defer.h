// Launches that do not simply run: on a blocked stream they queue, in a task group they are remembered as operators,
// and in an update they replace the arguments of a remembered one.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "torch/capture.h"

namespace softnpu {

// Lets every launch pass by `intercept` from now on (npu_watch.cpp).
void watch_launches();

// Whether the launch was taken care of; its results are on the stack then.
bool intercept(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack,
               const c10::SafeKernelFunction& kernel, int device);

void update_begin(int device, StreamId stream, const std::shared_ptr<TaskGroup>& group);
void update_end(int device, StreamId stream);

}  // namespace softnpu
