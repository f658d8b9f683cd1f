// Zeros that cost no host memory: pages that nobody touched read as zero already.
#pragma once

#include <ATen/core/Tensor.h>

namespace softnpu {

// As PyTorch's CPU kernels, on aliases of NPU tensors.
at::Tensor& zero_(at::Tensor& alias);
at::Tensor& fill_(at::Tensor& alias, const c10::Scalar& value);

}  // namespace softnpu
