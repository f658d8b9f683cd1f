// Products of a few rows with a half-precision matrix (decoding): the matrix is read once, as it is.
#pragma once

#include <ATen/core/Tensor.h>

namespace softnpu::kernels {

constexpr int64_t kSkinnyRows = 8;

// Whether this processor multiplies bf16 in pairs (lanes.h).
bool has_pairs();

// Whether `skinny_matmul` takes the product of a [M, K] and b [K, N].
bool takes_skinny_matmul(const at::Tensor& a, const at::Tensor& b);

// a @ b (+ bias, broadcast over the rows), summed in fp32 and rounded once.
at::Tensor skinny_matmul(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias);

}  // namespace softnpu::kernels
