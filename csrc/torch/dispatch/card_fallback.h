// What the card leaves to the host: operators without a kernel of its own.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>

namespace softnpu {

// The operator for which the card copies to the host, runs PyTorch's CPU kernel and copies back when `op` is called:
// itself, or the out form that its composite kernel calls. Empty where the card has a kernel.
std::string card_fallback(const c10::OperatorHandle& op);

// Warns as upstream does, once for each operator; raises with TORCH_NPU_FALLBACK_CPU_DISABLE=1.
void tell_of_fallback(const std::string& op);

}  // namespace softnpu
