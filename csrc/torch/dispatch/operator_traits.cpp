#include "torch/dispatch/operator_traits.h"

#include <utility>

namespace softnpu {

namespace {

using Traits = OperatorTraits;
using Table = std::unordered_map<std::string, Traits>;

Traits product(Traits::Product kind, std::vector<size_t> factors, bool widens) {
  Traits traits;
  traits.product = kind;
  traits.factors = std::move(factors);
  traits.widens = widens;
  return traits;
}

// CANN's names of the kernels of ATen's operators, where they are not the operator's name in CamelCase.
constexpr std::pair<const char*, const char*> kTypes[] = {
    {"mm", "MatMulV2"},
    {"addmm", "MatMulV2"},
    {"mv", "MatMulV2"},
    {"addmv", "MatMulV2"},
    {"matmul", "MatMulV2"},
    {"linear", "MatMulV2"},
    {"_int_mm", "MatMulV2"},
    {"bmm", "BatchMatMulV2"},
    {"baddbmm", "BatchMatMulV2"},
    {"convolution", "Conv2D"},
    {"convolution_overrideable", "Conv2D"},
    {"convolution_backward", "Conv2DBackprop"},
    {"convolution_backward_overrideable", "Conv2DBackprop"},
    {"_scaled_dot_product_fused_attention_overrideable", "FlashAttentionScore"},
    {"_scaled_dot_product_fused_attention_overrideable_backward", "FlashAttentionScoreGrad"},
    {"native_layer_norm", "LayerNormV4"},
    {"native_layer_norm_backward", "LayerNormGradV3"},
    {"_softmax", "SoftmaxV2"},
    {"_softmax_backward_data", "SoftmaxGrad"},
    {"_log_softmax", "LogSoftmaxV2"},
    {"_log_softmax_backward_data", "LogSoftmaxGrad"},
    {"embedding", "GatherV2"},
    {"index_select", "GatherV2"},
    {"embedding_dense_backward", "EmbeddingDenseGradV2"},
    {"copy_", "TensorMove"},
    {"_copy_from", "TensorMove"},
    {"zero_", "ZerosLike"},
    {"fill_", "Fill"},
    {"sum", "ReduceSum"},
    {"mean", "ReduceMean"},
    {"amax", "ReduceMax"},
};

Table make_table() {
  Table table;
  for (const char* name : {"mm", "bmm", "mv", "dot", "vdot"}) {
    table[std::string("aten::") + name] = product(Traits::kMatmul, {0, 1}, true);
  }
  for (const char* name :
       {"addmm", "addmm_", "baddbmm", "baddbmm_", "addbmm", "addbmm_", "addmv", "addmv_", "_addmm_activation"}) {
    table[std::string("aten::") + name] = product(Traits::kMatmul, {1, 2}, true);
  }
  table["aten::convolution"] = product(Traits::kConvolution, {0, 1}, true);
  table["aten::convolution_backward"] = product(Traits::kConvolution, {0, 1, 2}, true);
  for (const char* name : {"npu_linear", "npu_bmmV2"}) {
    table[std::string("npu::") + name] = product(Traits::kMatmul, {0, 1}, false);
  }
  for (const char* name : {"npu_conv2d", "npu_conv3d", "npu_conv_transpose2d"}) {
    table[std::string("npu::") + name] = product(Traits::kConvolution, {0, 1}, false);
  }
  for (const char* name : {"prod",
                           "logsumexp",
                           "_log_softmax",
                           "_logcumsumexp",
                           "logcumsumexp",
                           "cumprod",
                           "addr",
                           "native_batch_norm",
                           "_native_batch_norm_legit",
                           "_batch_norm_with_update",
                           "native_batch_norm_backward",
                           "binary_cross_entropy_with_logits",
                           "nll_loss_forward",
                           "nll_loss2d_forward",
                           "_embedding_bag",
                           "_embedding_bag_forward_only",
                           "_adaptive_avg_pool3d",
                           "upsample_linear1d",
                           "upsample_bilinear2d",
                           "upsample_bicubic2d",
                           "upsample_trilinear3d",
                           "grid_sampler_2d",
                           "grid_sampler_3d",
                           "index_reduce",
                           "avg_pool3d",
                           "avg_pool3d_backward",
                           "_upsample_bilinear2d_aa",
                           "_upsample_bilinear2d_aa_backward",
                           "_upsample_bicubic2d_aa",
                           "_upsample_bicubic2d_aa_backward",
                           "multilabel_margin_loss_forward",
                           "rrelu_with_noise",
                           "rrelu_with_noise_"}) {
    table[std::string("aten::") + name].accumulates = true;
  }
  table["aten::histc"].counts = true;
  for (const char* name : {"empty", "empty_strided", "_efficientzerotensor", "set_", "resize_", "record_stream",
                           "is_pinned", "_reshape_alias"}) {
    table[std::string("aten::") + name].describes = true;
  }
  for (const char* name : {"copy_", "zero_", "fill_", "normal_", "uniform_", "bernoulli_", "random_", "exponential_",
                           "geometric_", "log_normal_", "cauchy_", "_foreach_copy_", "_foreach_zero_"}) {
    table[std::string("aten::") + name].overwrites = true;
  }
  for (const char* name : {"npu_top_k_top_p", "npu_hans_encode", "npu_hans_decode"}) {  // the latter two: any bits
    table[std::string("npu::") + name].infinite = true;
  }
  table["aten::native_batch_norm"].writes = {3, 4};  // running statistics
  for (const char* name : {"index", "index_select", "gather", "embedding", "take", "masked_select", "index_put_",
                           "index_copy_", "index_add_", "index_fill_", "scatter_", "scatter_add_", "masked_scatter_",
                           "masked_fill_", "_index_put_impl_", "put_", "fill_diagonal_", "where"}) {
    table[std::string("aten::") + name].reads_some = true;
  }
  for (const auto& [name, type] : kTypes) table[std::string("aten::") + name].type = type;
  for (const char* name :
       {"matmul", "linear", "_int_mm", "convolution_overrideable", "convolution_backward_overrideable"}) {
    table[std::string("aten::") + name].core = "AI_CORE";
  }
  for (const char* name : {"_scaled_dot_product_fused_attention_overrideable",
                           "_scaled_dot_product_fused_attention_overrideable_backward"}) {
    table[std::string("aten::") + name].core = "MIX_AIC";
  }
  return table;
}

}  // namespace

const Table& all_traits() {
  static const auto* table = new Table(make_table());
  return *table;
}

const Traits& traits_of(const std::string& name) {
  static const auto* none = new Traits;
  const auto found = all_traits().find(name);
  return found == all_traits().end() ? *none : found->second;
}

}  // namespace softnpu
