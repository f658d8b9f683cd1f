// The tensors inside boxed values (single, in lists, in lists of optionals), and what a schema says of them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

namespace softnpu {

template <class Each>
void each_tensor(const c10::IValue& value, Each each) {
  if (value.isTensor()) {
    each(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorList()) each(tensor);
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) {
      if (tensor.has_value()) each(*tensor);
    }
  }
}

// Of the last `count` values of a stack, the defined ones.
template <class Each>
void each_tensor(const torch::jit::Stack& stack, size_t count, Each each) {
  for (size_t i = stack.size() - count; i < stack.size(); ++i) {
    each_tensor(stack[i], [&](const at::Tensor& tensor) {
      if (tensor.defined()) each(tensor);
    });
  }
}

template <class Map>
void map_tensors(c10::IValue& value, Map map) {
  if (value.isTensor()) {
    value = c10::IValue(map(std::move(value).toTensor()));
  } else if (value.isTensorList()) {
    const c10::List<at::Tensor> from = std::move(value).toTensorList();
    c10::List<at::Tensor> to;
    to.reserve(from.size());
    const bool shared = from.use_count() > 1;  // somebody else still needs its elements
    for (size_t i = 0; i < from.size(); ++i) to.push_back(map(shared ? from.get(i) : from.extract(i)));
    value = c10::IValue(std::move(to));
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> to;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) {
      to.push_back(tensor.has_value() ? std::make_optional(map(at::Tensor(*tensor))) : std::nullopt);
    }
    value = c10::IValue(std::move(to));
  }
}

// Of the last `count` values of a stack, the tensors that are not among the arguments themselves: what a call made.
template <class Each>
void each_new_tensor(const torch::jit::Stack& stack, size_t count, const std::vector<c10::IValue>& arguments,
                     Each each) {
  each_tensor(stack, count, [&](const at::Tensor& result) {
    bool given = false;
    for (const c10::IValue& argument : arguments) {
      each_tensor(argument, [&](const at::Tensor& tensor) { given |= tensor.is_same(result); });
    }
    if (!given) each(result);
  });
}

// Whether a schema says that the argument is written, or that the result is an argument that was.
inline bool writes(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

// Whether an operator returns a view of an argument.
inline bool is_view(const c10::FunctionSchema& schema) {
  for (const auto& result : schema.returns()) {
    if (result.alias_info() != nullptr && !writes(result)) return true;
  }
  return false;
}

}  // namespace softnpu
