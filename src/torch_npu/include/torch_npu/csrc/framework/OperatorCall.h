// Calls an operator of torch_npu or ATen by the name that CANN gives it: `aclnnRmsNorm`, `RmsNorm`.
//
// Sought are, in this order, `aclnn::<name as it is>` (a reference of the program's own, see softnpu.kernels),
// `npu::npu_<name>` and `aten::<name>` with the name in words: aclnnRmsNorm is npu_rms_norm, aclnnAdd is add,
// aclnnInplaceAdd is add_. The arguments are given in the schema's order, and the results are written to the tensors
// that follow them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cctype>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

namespace softnpu_headers {

inline std::string words(std::string name) {
  const std::string prefix = "aclnn";
  if (name.rfind(prefix, 0) == 0) name = name.substr(prefix.size());
  const std::string inplace = "Inplace";
  const bool writes = name.rfind(inplace, 0) == 0;
  if (writes) name = name.substr(inplace.size());
  std::string made;
  for (size_t i = 0; i < name.size(); ++i) {
    const bool upper = std::isupper(static_cast<unsigned char>(name[i])) != 0;
    const bool starts = upper && i > 0 &&
                        (std::islower(static_cast<unsigned char>(name[i - 1])) != 0 ||
                         (i + 1 < name.size() && std::islower(static_cast<unsigned char>(name[i + 1])) != 0));
    if (starts) made += '_';
    made += static_cast<char>(std::tolower(static_cast<unsigned char>(name[i])));
  }
  return writes ? made + "_" : made;
}

inline c10::IValue value(const at::Tensor& tensor) { return tensor.defined() ? c10::IValue(tensor) : c10::IValue(); }
inline c10::IValue value(const std::optional<at::Tensor>& tensor) { return tensor ? value(*tensor) : c10::IValue(); }
inline c10::IValue value(const char* text) { return std::string(text); }
inline c10::IValue value(char* text) { return std::string(text); }
inline c10::IValue value(at::TensorList tensors) { return tensors.vec(); }
inline c10::IValue value(at::IntArrayRef numbers) { return numbers.vec(); }
inline c10::IValue value(at::ScalarType type) { return static_cast<int64_t>(type); }
template <class T>
c10::IValue value(const T& given) {
  if constexpr (std::is_same_v<T, bool>) {
    return given;
  } else if constexpr (std::is_integral_v<T> || std::is_enum_v<T>) {
    return static_cast<int64_t>(given);
  } else if constexpr (std::is_floating_point_v<T>) {
    return static_cast<double>(given);
  } else {
    return c10::IValue(given);
  }
}

// The value as the schema takes it, nothing if it is of another type.
inline std::optional<c10::IValue> fitting(c10::IValue given, const c10::TypePtr& type) {
  c10::TypePtr wanted = type;
  if (auto optional = type->cast<c10::OptionalType>()) {
    if (given.isNone()) return given;
    wanted = optional->getElementType();
  }
  if (wanted->kind() == c10::TypeKind::FloatType && given.isInt()) return c10::IValue(double(given.toInt()));
  if (wanted->kind() == c10::TypeKind::NumberType && (given.isInt() || given.isDouble() || given.isBool()))
    return given;
  if (wanted->kind() == c10::TypeKind::SymIntType && given.isInt()) return given;
  if (given.isNone() || !given.type()->isSubtypeOf(*wanted)) {
    const bool list = wanted->kind() == c10::TypeKind::ListType && given.isIntList() &&
                      wanted->castRaw<c10::ListType>()->getElementType()->kind() == c10::TypeKind::SymIntType;
    if (!list) return std::nullopt;
  }
  return given;
}

inline size_t outputs(const c10::FunctionSchema& schema) { return schema.returns().size(); }

inline bool call_if_fits(const c10::OperatorHandle& op, const std::vector<c10::IValue>& given) {
  const c10::FunctionSchema& schema = op.schema();
  const size_t inputs = schema.arguments().size();
  if (given.size() < inputs || given.size() > inputs + outputs(schema)) return false;
  torch::jit::Stack stack;
  for (size_t i = 0; i < inputs; ++i) {
    auto fits = fitting(given[i], schema.arguments()[i].type());
    if (!fits) return false;
    stack.push_back(*fits);
  }
  for (size_t i = inputs; i < given.size(); ++i) {
    if (!given[i].isTensor() && !given[i].isNone()) return false;
  }
  op.callBoxed(&stack);
  for (size_t i = inputs; i < given.size(); ++i) {
    const c10::IValue& result = stack[i - inputs];
    if (given[i].isTensor() && result.isTensor()) given[i].toTensor().copy_(result.toTensor());
  }
  return true;
}

inline void call_by_name(const std::string& name, const std::vector<c10::IValue>& given) {
  const std::string plain = words(name);
  std::string seen;
  for (const std::string& candidate : {"aclnn::" + name, "npu::npu_" + plain, "npu::" + plain, "aten::" + plain}) {
    for (const c10::OperatorName& found : c10::Dispatcher::singleton().getAllOpNames()) {
      if (found.name != candidate) continue;
      auto op = c10::Dispatcher::singleton().findSchema(found);
      if (!op) continue;
      if (call_if_fits(*op, given)) return;
      seen += "\n  " + c10::toString(op->schema());
    }
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      !seen.empty(), name, ": no operator of torch_npu or ATen has this name. Supply a reference in Python: ",
      "softnpu.kernels.register(\"aclnn::", name, "\", function, schema=...), see docs/cpp_extensions.md.");
  TORCH_CHECK(false, name, ": the ", given.size(),
              " arguments fit none of these schemas, followed by their results:", seen);
}

template <class... Args>
void call(const char* name, const Args&... args) {
  call_by_name(name, {value(args)...});
}

}  // namespace softnpu_headers
