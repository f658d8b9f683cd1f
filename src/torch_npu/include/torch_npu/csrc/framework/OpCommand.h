// at_npu::native::OpCommand: an operator of CANN by its type, inputs, attributes and outputs.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "torch_npu/csrc/core/npu/NPUStream.h"
#include "torch_npu/csrc/framework/OperatorCall.h"

namespace at_npu::native {

using PROC_FUNC = std::function<int()>;

class OpCommand {
 public:
  OpCommand& Name(const std::string& name) {
    name_ = name;
    return *this;
  }
  OpCommand& Input() { return Input(at::Tensor()); }
  OpCommand& Input(const at::Tensor& input) {
    given_.push_back(softnpu_headers::value(input));
    return *this;
  }
  OpCommand& Input(const at::Tensor& input, const std::string& /*name*/) { return Input(input); }
  OpCommand& Input(const c10::Scalar& input, at::ScalarType /*type*/) {
    given_.emplace_back(input);
    return *this;
  }
  OpCommand& Input(const at::IntArrayRef& numbers, at::ScalarType /*type*/ = at::kLong) {
    given_.push_back(softnpu_headers::value(numbers));
    return *this;
  }
  template <class T>
  OpCommand& Attr(const std::string& /*name*/, T value) {
    given_.push_back(softnpu_headers::value(value));
    return *this;
  }
  OpCommand& Output(at::Tensor& output) {
    outputs_.push_back(softnpu_headers::value(output));
    return *this;
  }

  // Calls the operator of this type: inputs and attributes in the order given, results into the outputs.
  void Run() {
    TORCH_CHECK(!name_.empty(), "OpCommand: expected a Name before Run");
    std::vector<c10::IValue> all = given_;
    all.insert(all.end(), outputs_.begin(), outputs_.end());
    softnpu_headers::call_by_name(name_, all);
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
  std::vector<c10::IValue> given_;
  std::vector<c10::IValue> outputs_;
};

}  // namespace at_npu::native
