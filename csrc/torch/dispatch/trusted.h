// What PyTorch's CPU kernels trust of their arguments, because PyTorch's own functions made them.
//
// A program may call such an operator directly (torch.ops.aten), and a kernel that trusts it would then read or write
// outside its tensors. The rules are few: for operators with sizes or indices that no one else looks at. Which operator
// has which is a fact of operator_traits.cpp.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

namespace softnpu {

// The arguments of a call, by the labels of the schema.
struct CallArguments {
  const c10::FunctionSchema& schema;
  const c10::IValue* first;

  const c10::IValue* find(const char* label) const;
  at::Tensor tensor(const char* label) const;  // undefined if there is none
};

namespace trusted {

// Sizes and numbers: before the launch.
void batch_norm(const CallArguments& given);
void layer_norm(const CallArguments& given);
void group_norm(const CallArguments& given);
void pool_planes(const CallArguments& given);
void pool_sizes(const CallArguments& given);
void grid_sampler(const CallArguments& given);
void embedding_bag_sizes(const CallArguments& given);
void padding(const CallArguments& given);
void antialiased_sizes(const CallArguments& given);
void optimizer_states(const CallArguments& given);
void cdist(const CallArguments& given);
void pdist(const CallArguments& given);
void unfold(const CallArguments& given);
void fft(const CallArguments& given);
void pivot_sizes(const CallArguments& given);
void segment_sizes(const CallArguments& given);
void index_tensors(const CallArguments& given);
void ctc_sizes(const CallArguments& given);
void quantizers(const CallArguments& given);  // of every operator on quantized tensors

// Data: on CPU tensors, when the values are there.
void pool_indices(const CallArguments& given);
void embedding_bag_values(const CallArguments& given);
void embedding_counts(const CallArguments& given);
void pivot_values(const CallArguments& given);
void segment_values(const CallArguments& given);
void quotients(const CallArguments& given);
void ctc_values(const CallArguments& given);

}  // namespace trusted

}  // namespace softnpu
