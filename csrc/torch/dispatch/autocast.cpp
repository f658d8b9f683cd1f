// torch.autocast("npu"): which operators run in the lower precision, which in fp32, which promote.
// The lists are upstream's; each is a fact about the device.
#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

namespace {

using namespace at::autocast;

at::Tensor refuse_binary_cross_entropy(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                                       int64_t) {
  TORCH_CHECK(false,
              "binary_cross_entropy and BCELoss are unsafe to autocast: probabilities near 0 and 1 lose their "
              "logarithm in half precision. Use binary_cross_entropy_with_logits or BCEWithLogitsLoss on the logits.");
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

#define LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define FP32_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  LOWER(_convolution, deprecated)
  LOWER(_convolution)
  LOWER(conv1d)
  LOWER(conv2d)
  LOWER(conv3d)
  LOWER(conv_tbc)
  LOWER(conv_transpose1d)
  LOWER(conv_transpose2d, input)
  LOWER(conv_transpose3d, input)
  LOWER(convolution)
  LOWER(prelu)
  LOWER(addmm)
  LOWER(addmv)
  LOWER(addr)
  LOWER(matmul)
  LOWER(einsum)
  LOWER(mm)
  LOWER(mv)
  LOWER(linear)
  LOWER(addbmm)
  LOWER(baddbmm)
  LOWER(bmm)
  LOWER(chain_matmul)
  LOWER(linalg_multi_dot)
  LOWER(_thnn_fused_lstm_cell)
  LOWER(_thnn_fused_gru_cell)
  LOWER(lstm_cell)
  LOWER(gru_cell)
  LOWER(rnn_tanh_cell)
  LOWER(rnn_relu_cell)
  LOWER(scaled_dot_product_attention)

  FP32(acos)
  FP32(asin)
  FP32(cosh)
  FP32(erfinv)
  FP32(exp)
  FP32(expm1)
  FP32(log)
  FP32(log10)
  FP32(log2)
  FP32(log1p)
  FP32(reciprocal)
  FP32(rsqrt)
  FP32(sinh)
  FP32(tan)
  FP32(pow, Tensor_Scalar)
  FP32(pow, Tensor_Tensor)
  FP32(pow, Scalar)
  FP32(softplus)
  FP32(layer_norm)
  FP32(native_layer_norm)
  FP32(group_norm)
  FP32(frobenius_norm, dim)
  FP32(nuclear_norm)
  FP32(nuclear_norm, dim)
  FP32(cosine_similarity)
  FP32(poisson_nll_loss)
  FP32(cosine_embedding_loss)
  FP32(nll_loss)
  FP32(nll_loss2d)
  FP32(hinge_embedding_loss)
  FP32(kl_div)
  FP32(l1_loss)
  FP32(smooth_l1_loss)
  FP32(huber_loss)
  FP32(mse_loss)
  FP32(margin_ranking_loss)
  FP32(multilabel_margin_loss)
  FP32(soft_margin_loss)
  FP32(triplet_margin_loss)
  FP32(multi_margin_loss)
  FP32(binary_cross_entropy_with_logits)
  FP32(dist)
  FP32(pdist)
  FP32(cdist)
  FP32(renorm)
  FP32(logsumexp)

  FP32_DTYPE(prod)
  FP32_DTYPE(prod, dim_int)
  FP32_DTYPE(softmax, int)
  FP32_DTYPE(log_softmax, int)
  FP32_DTYPE(cumprod)
  FP32_DTYPE(cumsum)
  FP32_DTYPE(linalg_vector_norm)
  FP32_DTYPE(linalg_matrix_norm)
  FP32_DTYPE(linalg_matrix_norm, str_ord)
  FP32_DTYPE(sum)
  FP32_DTYPE(sum, dim_IntList)

  KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE(
      ADD_NS(norm), "norm.Scalar", at::Tensor(const at::Tensor&, const c10::Scalar&),
      at::Tensor(const at::Tensor&, const std::optional<c10::Scalar>&, at::ScalarType), fp32_append_dtype)
  KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE(
      ADD_NS(norm), "norm.ScalarOpt_dim",
      at::Tensor(const at::Tensor&, const std::optional<c10::Scalar>&, at::IntArrayRef, bool),
      at::Tensor(const at::Tensor&, const std::optional<c10::Scalar>&, at::IntArrayRef, bool, at::ScalarType),
      fp32_append_dtype)

  PROMOTE(addcdiv)
  PROMOTE(addcmul)
  PROMOTE(atan2)
  PROMOTE(bilinear)
  PROMOTE(cross)
  PROMOTE(dot)
  PROMOTE(grid_sampler)
  PROMOTE(index_put)
  PROMOTE(tensordot)
  PROMOTE(scatter_add)

  m.impl("binary_cross_entropy", &refuse_binary_cross_entropy);
}

}  // namespace
