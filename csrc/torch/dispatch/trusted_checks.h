// What the rules of trusted.h are made of.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <limits>

#include "torch/dispatch/trusted.h"

namespace softnpu {

inline void expect_sizes(const CallArguments& given, const char* label, c10::IntArrayRef sizes, const char* of) {
  const at::Tensor tensor = given.tensor(label);
  TORCH_CHECK(tensor.defined() && tensor.sizes() == sizes, given.schema.name(), ": argument '", label,
              "' must have the sizes ", sizes, of, ", but has ",
              tensor.defined() ? tensor.sizes() : c10::IntArrayRef());
}

inline void expect_elements(const CallArguments& given, const char* label, int64_t count, const char* of) {
  const at::Tensor tensor = given.tensor(label);
  TORCH_CHECK(!tensor.defined() || tensor.numel() == count, given.schema.name(), ": argument '", label, "' must have ",
              count, " elements, ", of, ", but has ", tensor.numel());
}

// The least and the greatest element. Without an allocation: a plan of the program's memory makes none here.
template <class T>
inline void extremes(const T* data, c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t& least, int64_t& most) {
  if (sizes.empty()) {
    least = std::min(least, static_cast<int64_t>(*data));
    most = std::max(most, static_cast<int64_t>(*data));
    return;
  }
  if (sizes.size() > 1 || strides[0] != 1) {
    for (int64_t i = 0; i < sizes[0]; ++i)
      extremes(data + i * strides[0], sizes.slice(1), strides.slice(1), least, most);
    return;
  }
  T low = *data, high = *data;
  for (int64_t i = 0; i < sizes[0]; ++i) {
    low = std::min(low, data[i]);
    high = std::max(high, data[i]);
  }
  least = std::min(least, static_cast<int64_t>(low));
  most = std::max(most, static_cast<int64_t>(high));
}

// Every element in [low, high).
inline void expect_range(const CallArguments& given, const char* label, int64_t low, int64_t high) {
  const at::Tensor indices = given.tensor(label);
  if (!indices.defined() || indices.numel() == 0) return;
  const auto type = indices.scalar_type();
  if (type != at::kLong && type != at::kInt) return;  // the kernel refuses it
  const int64_t count = indices.numel(), one = 1;
  const bool flat = indices.is_non_overlapping_and_dense();
  const c10::IntArrayRef sizes = flat ? c10::IntArrayRef(count) : indices.sizes();
  const c10::IntArrayRef strides = flat ? c10::IntArrayRef(one) : indices.strides();
  int64_t least = std::numeric_limits<int64_t>::max(), most = std::numeric_limits<int64_t>::min();
  if (type == at::kLong) {
    extremes(indices.const_data_ptr<int64_t>(), sizes, strides, least, most);
  } else {
    extremes(indices.const_data_ptr<int32_t>(), sizes, strides, least, most);
  }
  TORCH_CHECK(least >= low && most < high, given.schema.name(), ": argument '", label, "' must hold indices from ", low,
              " to ", high - 1, ", but holds ", least < low ? least : most);
}

inline void expect_tensor(const CallArguments& given, const char* label, const char* when) {
  TORCH_CHECK(given.tensor(label).defined(), given.schema.name(), ": argument '", label, "' must be a tensor ", when,
              ", but is None");
}

inline bool flag(const CallArguments& given, const char* label, bool otherwise) {
  const c10::IValue* value = given.find(label);
  return value != nullptr && value->isBool() ? value->toBool() : otherwise;
}

inline int64_t number(const CallArguments& given, const char* label) {
  const c10::IValue* value = given.find(label);
  return value != nullptr && value->isInt() ? value->toInt() : 0;
}

inline bool holds_least(const at::Tensor& tensor) {
  int64_t least = 0, most = 0;
  if (!tensor.defined() || tensor.numel() == 0) return false;
  if (tensor.scalar_type() == at::kLong) {
    extremes(tensor.const_data_ptr<int64_t>(), tensor.sizes(), tensor.strides(), least, most);
    return least == std::numeric_limits<int64_t>::min();
  }
  if (tensor.scalar_type() != at::kInt) return false;  // narrower ones are divided as int
  extremes(tensor.const_data_ptr<int32_t>(), tensor.sizes(), tensor.strides(), least, most);
  return least == std::numeric_limits<int32_t>::min();
}

}  // namespace softnpu
