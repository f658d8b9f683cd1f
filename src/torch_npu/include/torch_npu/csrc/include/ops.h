// Functions of torch_npu for C++ programs; operators are called through the dispatcher, by name with `call`.
#pragma once

#include <ATen/Context.h>
#include <ATen/ops/empty.h>

#include "torch_npu/csrc/core/npu/NPUFormat.h"
#include "torch_npu/csrc/core/npu/NPUFunctions.h"
#include "torch_npu/csrc/framework/OperatorCall.h"

namespace at_npu::native {

// The operator `npu::<name>` with these arguments, those that are left out by their defaults; its results.
template <class... Args>
std::vector<c10::IValue> call(const std::string& name, const Args&... args) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(("npu::" + name).c_str(), "");
  const auto& arguments = op.schema().arguments();
  torch::jit::Stack stack{softnpu_headers::value(args)...};
  TORCH_CHECK(stack.size() <= arguments.size(), "npu::", name, ": expected at most ", arguments.size(),
              " arguments, received ", stack.size());
  while (stack.size() < arguments.size()) {
    const auto& next = arguments[stack.size()];
    TORCH_CHECK(next.default_value().has_value(), "npu::", name, ": expected a value for ", next.name());
    stack.push_back(*next.default_value());
  }
  op.callBoxed(&stack);
  return stack;
}

inline at::Tensor npu_dropout_gen_mask(const at::Tensor& self, at::IntArrayRef size, double p, int64_t seed,
                                       int64_t offset, std::optional<bool> parallel = true,
                                       std::optional<bool> sync = false) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("npu::_npu_dropout_gen_mask", "Tensor");
  torch::jit::Stack stack{self, size.vec(), p, seed, offset, parallel.value_or(true), sync.value_or(false)};
  op.callBoxed(&stack);
  return stack.front().toTensor();
}

inline at::Tensor empty_with_swapped_memory(c10::IntArrayRef size, std::optional<at::ScalarType> dtype = std::nullopt,
                                            std::optional<c10::Device> device = std::nullopt) {
  return call("empty_with_swapped_memory", size, dtype, device).front().toTensor();
}

}  // namespace at_npu::native

namespace at_npu::detail {

inline const at::Generator& getDefaultNPUGenerator(c10::DeviceIndex device = -1) {
  const auto index = device < 0 ? c10_npu::current_device() : device;
  return at::globalContext().defaultGenerator(c10::Device(c10::DeviceType::PrivateUse1, index));
}

inline at::Generator createNPUGenerator(c10::DeviceIndex device = -1) {
  const auto index = device < 0 ? c10_npu::current_device() : device;
  return at::globalContext().getAcceleratorHooksInterface(c10::DeviceType::PrivateUse1).getNewGenerator(index);
}

}  // namespace at_npu::detail
