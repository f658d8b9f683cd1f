// NPU tensors as gloo takes them, and the arithmetic that gloo lacks.
#pragma once

#include "hccl/process_group.h"

namespace softnpu::hccl {

at::Tensor flat(const at::Tensor& tensor, bool as_bytes = false);  // its memory as one row of a CPU tensor
at::Tensor bytes(const at::Tensor& tensor);
Tensors bytes(const Tensors& tensors);
Splits sizes_of(const Tensors& rows);
// Splits of dimension 0 (equal ones where none are given), in units of `unit` a row.
Splits splits_of(Splits splits, const at::Tensor& tensor, int ranks, int64_t unit);
int64_t row_of(const at::Tensor& tensor);  // elements of one row
const char* name_of(c10d::ReduceOp::RedOpType op);
void premultiply(at::Tensor& tensor, const c10d::ReduceOp& op);
void average(const at::Tensor& sum, int ranks);
// Reduces the rows of a matrix; half precision in fp32, rounded once.
at::Tensor reduce_rows(const at::Tensor& rows, const c10d::ReduceOp& op, int ranks);

}  // namespace softnpu::hccl
