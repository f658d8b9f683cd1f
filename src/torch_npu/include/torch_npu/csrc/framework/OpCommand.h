// at_npu::native::OpCommand: an operator of CANN by its type, inputs, attributes and outputs.
#pragma once

#include <ATen/ops/full.h>
#include <c10/util/SmallVector.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "torch_npu/csrc/core/npu/NPUStream.h"
#include "torch_npu/csrc/framework/OperatorCall.h"

namespace at_npu::native {

using PROC_FUNC = std::function<int()>;

// Where the card's compiler finds a host value; nothing is compiled here.
enum class CompileType {
  MEMORY_DEVICE_TYPE = 0,
  MEMORY_HOST_COMPILE_DEPENDENT = 1,
  MEMORY_HOST_COMPILE_INDEPENDENT = 2
};

class OpCommand {
 public:
  OpCommand& Name(const std::string& name) {
    name_ = name;
    return *this;
  }

  // The launch that Run performs instead of calling an operator by name; its result is 0 for success.
  OpCommand& SetCustomHandler(PROC_FUNC handler) {
    handler_ = std::move(handler);
    return *this;
  }

  OpCommand& Input() { return Input(at::Tensor()); }
  // The names, formats and types that follow describe the tensor to the card's compiler.
  OpCommand& Input(const at::Tensor& input, const std::string& /*name*/ = "",
                   const std::optional<aclFormat>& /*sensitive_format*/ = std::nullopt,
                   const std::string& /*real_type*/ = "") {
    given_.push_back(softnpu_headers::value(input));
    return *this;
  }
  OpCommand& InputWithoutContiguous(const at::Tensor& input, const std::string& name = "",
                                    const std::string& /*real_type*/ = "") {
    return Input(input, name);
  }
  OpCommand& Input(const c10::Scalar& input, at::ScalarType /*type*/,
                   CompileType /*compiled*/ = CompileType::MEMORY_HOST_COMPILE_INDEPENDENT) {
    given_.emplace_back(input);
    return *this;
  }
  OpCommand& Input(const at::IntArrayRef& numbers, at::ScalarType /*type*/ = at::kLong,
                   CompileType /*compiled*/ = CompileType::MEMORY_HOST_COMPILE_DEPENDENT,
                   const std::string& /*real_type*/ = "", const std::string& /*name*/ = "") {
    given_.push_back(softnpu_headers::value(numbers));
    return *this;
  }
  OpCommand& Inputs(const at::TensorList& inputs) {
    for (const at::Tensor& input : inputs) Input(input);
    return *this;
  }
  // A tensor of one element on the device.
  OpCommand& InputScalarToNPUTensor(const c10::Scalar& input, at::ScalarType type) {
    return Input(at::full({}, input, at::TensorOptions(type).device(c10::DeviceType::PrivateUse1)));
  }

  template <class T>
  OpCommand& Attr(const std::string& /*name*/, T value) {
    given_.push_back(softnpu_headers::value(value));
    return *this;
  }
  template <class T>
  OpCommand& Attr(const std::string& name, T value, bool given) {
    return given ? Attr(name, value) : *this;
  }

  OpCommand& Output(at::Tensor& output, const std::string& /*name*/ = "",
                    const std::optional<aclFormat>& /*sensitive_format*/ = std::nullopt,
                    const std::string& /*real_type*/ = "") {
    outputs_.push_back(softnpu_headers::value(output));
    return *this;
  }

  // Run returns when the results are there: so it does without this too.
  OpCommand& Sync() { return *this; }
  template <unsigned N>
  OpCommand& Sync(c10::SmallVector<int64_t, N>& /*indices*/) {
    return *this;
  }

  // Calls the operator of this type: inputs and attributes in the order given, results into the outputs.
  void Run() {
    TORCH_CHECK(!name_.empty(), "OpCommand: expected a Name before Run");
    if (handler_) {
      RunOpApiV2(name_, handler_);
    } else {
      std::vector<c10::IValue> all = given_;
      all.insert(all.end(), outputs_.begin(), outputs_.end());
      softnpu_headers::call_by_name(name_, all);
    }
    handler_ = nullptr;
    given_.clear();
    outputs_.clear();
  }

  // Runs a launch of the program's own, in the order of the current stream; its result is 0 for success.
  static void RunOpApi(const std::string& name, PROC_FUNC launch, bool sync = false) { RunOpApiV2(name, launch, sync); }
  static void RunOpApiV2(const std::string& name, const PROC_FUNC& launch, bool sync = false) {
    const auto stream = c10_npu::getCurrentNPUStream();
    stream.synchronize();
    const int code = launch();
    TORCH_CHECK(code == 0, "OpCommand: ", name, " failed with error ", code);
    if (sync) stream.synchronize();
  }

 private:
  std::string name_;
  PROC_FUNC handler_;
  std::vector<c10::IValue> given_;
  std::vector<c10::IValue> outputs_;
};

}  // namespace at_npu::native
