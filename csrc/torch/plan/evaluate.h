// The values of a run for shapes alone: which of an operator's results are computed, and how.
#pragma once

#include "torch/plan/values.h"

namespace softnpu::plan {

// What is known of an operator's arguments; those that it writes over do not count.
class Inputs {
 public:
  Inputs(const c10::OperatorHandle& op, const torch::jit::Stack& stack);
  bool known() const { return known_; }      // all values are there, and are computed
  bool guessed() const { return guessed_; }  // some come from values that are not
  const at::Tensor& absent() const { return absent_; }

 private:
  bool known_ = true, guessed_ = false;
  at::Tensor absent_;
};

// Whether the values of results (new ones, by their shapes; and arguments that are written) are computed.
bool computes_results(const c10::OperatorHandle& op, const torch::jit::Stack& results);
void mark_results(const c10::OperatorHandle& op, const torch::jit::Stack& results, uint8_t data);

// After the results were allocated: small integers that come from absent values are chosen or worked out with 1.0 in
// their place, everything else is absent. The results are on the stack.
void fill_results(const c10::OperatorHandle& op, const torch::jit::Stack& given, const torch::jit::Stack& results);

bool gives_arguments(const c10::FunctionSchema& schema);  // it returns what it was given to write
void leave_arguments(const c10::OperatorHandle& op, torch::jit::Stack* stack);
bool answer_masked_select(const c10::OperatorHandle& op, torch::jit::Stack* stack);

void copy(const at::Tensor& to, const at::Tensor& from);

}  // namespace softnpu::plan
