// Which calls make the host read data of the device.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <string>

namespace softnpu {

inline bool is_mask(const c10::IValue& index) {
  if (!index.isTensor() || !index.toTensor().defined()) return false;
  const auto type = index.toTensor().scalar_type();
  return type == at::kBool || type == at::kByte;
}

// Whether the host must know data to give the result its value or its size. PyTorch tags operators; two of them need
// the data only with certain arguments: an index that is a mask, repetitions without output_size.
inline bool reads_data(const c10::OperatorHandle& op, c10::ArrayRef<const c10::IValue> arguments) {
  if (op.hasTag(at::Tag::data_dependent_output)) return true;
  if (!op.hasTag(at::Tag::dynamic_output_shape)) return false;
  const std::string& name = op.operator_name().name;
  if (name == "aten::index" || name == "aten::_unsafe_index") {
    for (const c10::IValue& index : arguments[1].toListRef()) {
      if (is_mask(index)) return true;
    }
    return false;
  }
  if (name == "aten::repeat_interleave" && op.operator_name().overload_name == "Tensor") {
    return arguments[1].isNone();
  }
  return true;
}

}  // namespace softnpu
