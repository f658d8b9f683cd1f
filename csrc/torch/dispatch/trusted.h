// What PyTorch's CPU kernels trust of their arguments, because PyTorch's own functions made them.
//
// A program may call such an operator directly (torch.ops.aten), and a kernel that trusts it would then read or write
// outside its tensors. The rules are few: for operators with sizes or indices that no one else looks at.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <string>

namespace softnpu {

// The arguments of a call, by the labels of the schema.
struct Given {
  const c10::FunctionSchema& schema;
  const c10::IValue* first;

  const c10::IValue* find(const char* label) const;
  at::Tensor tensor(const char* label) const;  // undefined if there is none
};

struct Trusted {
  void (*sizes)(const Given& given) = nullptr;   // before the launch
  void (*values)(const Given& given) = nullptr;  // on CPU tensors, when the values are there
};

// Of the operator with this qualified name, all overloads; mostly nothing.
Trusted trusted(const std::string& name);

}  // namespace softnpu
