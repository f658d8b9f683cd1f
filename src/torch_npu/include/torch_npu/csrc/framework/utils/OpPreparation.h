// Outputs of custom operators.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "torch_npu/csrc/core/npu/NPUFormat.h"

namespace at_npu::native {

class OpPreparation {
 public:
  static at::Tensor apply_tensor_without_format(const at::Tensor& like) {
    return apply_tensor_without_format(like.sizes(), like.options());
  }
  static at::Tensor apply_tensor_without_format(const at::Tensor& like, c10::IntArrayRef sizes) {
    return apply_tensor_without_format(sizes, like.options());
  }
  static at::Tensor apply_tensor_without_format(c10::IntArrayRef sizes, const c10::TensorOptions& options) {
    return at::empty(sizes, options.memory_format(std::nullopt));
  }
  static at::Tensor apply_tensor(const at::Tensor& like) { return apply_tensor_without_format(like); }
  static at::Tensor apply_tensor(const at::Tensor& like, c10::IntArrayRef sizes) {
    return apply_tensor_without_format(like, sizes);
  }
  static at::Tensor apply_tensor_with_format(const at::Tensor& like, int64_t format) {
    return empty_with_format(like.sizes(), like.options(), format);
  }
  static at::Tensor unsafe_empty_workspace(uint64_t size) {
    return at::empty({static_cast<int64_t>(size)}, at::TensorOptions(at::kByte).device(c10::DeviceType::PrivateUse1));
  }
  static void check_tensor(const std::initializer_list<at::Tensor>& inputs, const at::Tensor& output,
                           at::ScalarType type, c10::IntArrayRef sizes) {
    for (const at::Tensor& input : inputs) {
      TORCH_CHECK(input.device() == output.device(), "check_tensor: expected all tensors on ", output.device(),
                  ", received one on ", input.device());
    }
    TORCH_CHECK(output.scalar_type() == type, "check_tensor: expected an output of type ", type, ", received ",
                output.scalar_type());
    if (output.sizes() != sizes) output.resize_(sizes);
  }
};

}  // namespace at_npu::native
