// Calls an operator of torch_npu or ATen by the name that CANN gives it: `aclnnRmsNorm`, `RmsNorm`.
//
// Sought are, in this order, `aclnn::<name as it is>` (softnpu.kernels, torch_npu.aclnn), `npu::npu_<name>`,
// `npu::<name>` and `aten::<name>`: aclnnRmsNorm is npu_rms_norm, aclnnAdd is add, aclnnInplaceAdd is add_,
// aclnnSwiGluGrad is npu_swiglu_backward. The arguments are given in the schema's order, the last ones left out if they
// have defaults, and the results are written to the tensors that follow them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <cctype>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "acl/softnpu_opapi.h"

namespace softnpu_headers {

// A name in small letters without underscores, but for one at its end, which says that the operator writes: SwiGlu and
// npu_swiglu differ in how they part words.
inline std::string compact(const std::string& name) {
  std::string made;
  for (const char letter : name) {
    if (letter != '_') made += static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  }
  return !name.empty() && name.back() == '_' ? made + "_" : made;
}

// The names of operators that an aclnn function may be, as `compact` gives them.
inline std::vector<std::string> candidates(std::string name) {
  const auto take = [&name](const std::string& prefix) {
    if (name.rfind(prefix, 0) != 0) return false;
    name = name.substr(prefix.size());
    return true;
  };
  take("aclnn");
  if (take("Inplace")) name += "_";
  const std::string plain = compact(name);
  std::vector<std::string> made = {"npu::npu" + plain, "npu::" + plain, "aten::" + plain};
  const std::string gradient = "grad";
  if (plain.size() > gradient.size() && plain.substr(plain.size() - gradient.size()) == gradient) {
    const std::string backward = plain.substr(0, plain.size() - gradient.size()) + "backward";
    for (const char* library : {"npu::npu", "npu::", "aten::"}) made.push_back(library + backward);
  }
  return made;
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
  } else if constexpr (std::is_convertible_v<const T&, at::IntArrayRef>) {
    return at::IntArrayRef(given).vec();  // of a SmallVector, for example
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

// Writes a result to where the caller wants it: a tensor, the tensors of a list, or nowhere.
inline void write(const c10::IValue& wanted, const c10::IValue& result) {
  if (wanted.isTensor() && result.isTensor()) {
    wanted.toTensor().copy_(result.toTensor());
  } else if (wanted.isTensorList() && result.isTensorList()) {
    const auto to = wanted.toTensorVector();
    const auto from = result.toTensorVector();
    TORCH_CHECK(to.size() == from.size(), "expected ", from.size(), " outputs in the list, received ", to.size());
    for (size_t i = 0; i < to.size(); ++i) {
      if (to[i].defined()) to[i].copy_(from[i]);
    }
  }
}

// Calls the operator with the first `inputs` of its arguments given and the others at their defaults.
inline bool call_with(const c10::OperatorHandle& op, const std::vector<c10::IValue>& given, size_t inputs) {
  const auto& arguments = op.schema().arguments();
  torch::jit::Stack stack;
  for (size_t i = 0; i < inputs; ++i) {
    auto fits = fitting(given[i], arguments[i].type());
    if (!fits) return false;
    stack.push_back(*fits);
  }
  for (size_t i = inputs; i < arguments.size(); ++i) stack.push_back(*arguments[i].default_value());
  op.callBoxed(&stack);
  for (size_t i = inputs; i < given.size(); ++i) write(given[i], stack[i - inputs]);
  return true;
}

inline bool call_if_fits(const c10::OperatorHandle& op, const std::vector<c10::IValue>& given) {
  const auto& arguments = op.schema().arguments();
  const size_t results = op.schema().returns().size();
  const auto is_output = [](const c10::IValue& value) {
    return value.isTensor() || value.isTensorList() || value.isNone();
  };
  for (size_t inputs = arguments.size();; --inputs) {
    const bool whole = inputs == arguments.size();
    const size_t outputs = given.size() - std::min(inputs, given.size());
    const bool counts = whole ? inputs <= given.size() && outputs <= results : outputs == results;
    if (counts && std::all_of(given.begin() + inputs, given.end(), is_output) && call_with(op, given, inputs)) {
      return true;
    }
    if (inputs == 0 || !arguments[inputs - 1].default_value()) return false;
  }
}

// The overloads of an operator of torch_npu or ATen, which stay for as long as the process does.
inline const std::vector<c10::OperatorHandle>& overloads(const std::string& compacted) {
  static std::mutex lock;
  static auto* known = new std::unordered_map<std::string, std::vector<c10::OperatorHandle>>;
  const std::lock_guard<std::mutex> guard(lock);
  std::vector<c10::OperatorHandle>& found = (*known)[compacted];
  if (!found.empty()) return found;
  for (const c10::OperatorName& candidate : c10::Dispatcher::singleton().getAllOpNames()) {
    if (compact(candidate.name) != compacted) continue;
    if (auto op = c10::Dispatcher::singleton().findSchema(candidate)) found.push_back(*op);
  }
  return found;
}

inline void call_by_name(const std::string& name, const std::vector<c10::IValue>& given) {
  static const auto load = opapi_function<void()>("softnpu_load_aclnn");
  if (load != nullptr) load();
  std::string seen;
  if (auto own = c10::Dispatcher::singleton().findSchema({"aclnn::" + name, ""})) {
    if (call_if_fits(*own, given)) return;
    seen += "\n  " + c10::toString(own->schema());
  }
  for (const std::string& candidate : candidates(name)) {
    for (const c10::OperatorHandle& op : overloads(candidate)) {
      if (call_if_fits(op, given)) return;
      seen += "\n  " + c10::toString(op.schema());
    }
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      !seen.empty(), name, ": no operator of torch_npu or ATen has this name. Supply a reference in Python: ",
      "softnpu.kernels.register(\"aclnn::", name, "\", function, schema=...), see docs/cpp_extensions.md.");
  TORCH_CHECK(false, name, ": the ", given.size(),
              " arguments fit none of these schemas, followed by their results:", seen);
}

// An int8_t is cubeMathType, how the cube unit may round its products; operators of PyTorch have no such argument.
template <class T>
void append(std::vector<c10::IValue>& given, const T& argument) {
  if constexpr (!std::is_same_v<T, int8_t>) given.push_back(value(argument));
}

template <class... Args>
void call(const char* name, const Args&... args) {
  std::vector<c10::IValue> given;
  (append(given, args), ...);
  call_by_name(name, given);
}

}  // namespace softnpu_headers
