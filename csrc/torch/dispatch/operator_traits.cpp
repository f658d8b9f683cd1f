#include "torch/dispatch/operator_traits.h"

#include <initializer_list>
#include <utility>

#include "torch/dispatch/trusted.h"

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

using Names = std::initializer_list<const char*>;

void mark(Table& table, bool Traits::* fact, Names names) {
  for (const char* name : names) table[std::string("aten::") + name].*fact = true;
}

void multiply(Table& table, Traits::Product kind, const std::vector<size_t>& factors, Names names) {
  for (const char* name : names) table[std::string("aten::") + name] = product(kind, factors, true);
}

void trust(Table& table, Traits::Rule sizes, Traits::Rule data, Names names) {
  for (const char* name : names) {
    Traits& traits = table[std::string("aten::") + name];
    traits.trusted_sizes = sizes;
    traits.trusted_data = data;
  }
}

// What a direct call may get wrong: sizes, data.
void add_trusted(Table& table) {
  using namespace trusted;
  trust(table, batch_norm, nullptr,
        {"native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional",
         "_native_batch_norm_legit_no_training", "native_batch_norm_backward", "_batch_norm_with_update",
         "_batch_norm_with_update_functional", "_batch_norm_no_update", "batch_norm_backward", "cudnn_batch_norm",
         "miopen_batch_norm"});
  trust(table, layer_norm, nullptr, {"native_layer_norm_backward"});
  trust(table, group_norm, nullptr, {"native_group_norm", "native_group_norm_backward"});
  trust(table, pool_sizes, pool_indices,
        {"max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward", "adaptive_max_pool2d_backward",
         "adaptive_max_pool3d_backward", "fractional_max_pool2d_backward", "fractional_max_pool3d_backward"});
  trust(table, pool_planes, nullptr,
        {"_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward", "adaptive_avg_pool3d_backward"});
  trust(table, padding, nullptr,
        {"reflection_pad1d_backward", "reflection_pad2d_backward", "reflection_pad3d_backward",
         "replication_pad1d_backward", "replication_pad2d_backward", "replication_pad3d_backward"});
  trust(table, antialiased_sizes, nullptr,
        {"_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "_upsample_lanczos2d_aa"});
  trust(table, grid_sampler, nullptr, {"grid_sampler_2d_backward", "grid_sampler_3d_backward"});
  trust(table, embedding_bag_sizes, embedding_bag_values,
        {"_embedding_bag_backward", "_embedding_bag_dense_backward", "_embedding_bag_per_sample_weights_backward"});
  trust(table, nullptr, embedding_counts, {"embedding_dense_backward"});
  trust(table, optimizer_states, nullptr, {"_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_"});
  trust(table, fft, nullptr, {"_fft_c2c", "_fft_r2c", "_fft_c2r"});
  trust(table, nullptr, pivot_values, {"linalg_lu_solve", "linalg_ldl_solve"});
  trust(table, pivot_sizes, pivot_values, {"lu_unpack"});
  trust(table, segment_sizes, segment_values, {"segment_reduce", "_segment_reduce_backward"});
  trust(table, index_tensors, nullptr,
        {"index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put"});
  trust(table, unfold, nullptr, {"unfold_backward"});
  trust(table, cdist, nullptr, {"_cdist_backward"});
  trust(table, pdist, nullptr, {"_pdist_backward"});
  trust(table, ctc_sizes, ctc_values, {"_ctc_loss", "_ctc_loss_backward"});
  trust(table, nullptr, quotients, {"div", "div_", "lcm", "lcm_"});
}

// What a plan of a program asks (torch/plan).
void add_planned(Table& table) {
  mark(table, &Traits::promotes,
       {"add",     "add_",     "sub",   "sub_",        "mul",        "mul_",        "div",     "div_",
        "maximum", "minimum",  "atan2", "fmod",        "remainder",  "eq",          "ne",      "lt",
        "le",      "gt",       "ge",    "bitwise_and", "bitwise_or", "bitwise_xor", "addcmul", "addcmul_",
        "addcdiv", "addcdiv_", "hypot", "copysign",    "fmax",       "fmin"});
  mark(table, &Traits::large_temporaries,
       {"convolution",
        "convolution_backward",
        "native_batch_norm",
        "native_batch_norm_backward",
        "native_layer_norm_backward",
        "sort",
        "index_add_",
        "_index_put_impl_",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention_for_cpu_backward",
        "mm",
        "addmm",
        "bmm",
        "baddbmm",
        "embedding_dense_backward",
        "cumsum",
        "nll_loss_forward",
        "nll_loss_backward",
        "_softmax",
        "_log_softmax",
        "_softmax_backward_data",
        "_log_softmax_backward_data",
        "sum",
        "mean",
        "index_select",
        "scatter_add_",
        "gather",
        "linalg_vector_norm",
        "native_layer_norm",
        "max_pool2d_with_indices",
        "max_pool2d_with_indices_backward",
        "_adaptive_avg_pool2d",
        "_adaptive_avg_pool2d_backward",
        "index",
        "index_put_"});
  mark(table, &Traits::chooses,
       {"topk", "argmax", "argmin", "sort", "max", "min", "mode", "kthvalue", "median", "multinomial", "nanmedian"});
  table["softnpu::top_k_rows"].chooses = true;
  mark(table, &Traits::computes, {"convolution", "convolution_backward", "mkldnn_convolution", "_embedding_bag"});
}

Table make_table() {
  Table table;
  multiply(table, Traits::kMatmul, {0, 1}, {"mm", "bmm", "mv", "dot", "vdot"});
  multiply(table, Traits::kMatmul, {1, 2},
           {"addmm", "addmm_", "baddbmm", "baddbmm_", "addbmm", "addbmm_", "addmv", "addmv_", "_addmm_activation"});
  multiply(table, Traits::kConvolution, {0, 1}, {"convolution"});
  multiply(table, Traits::kConvolution, {0, 1, 2}, {"convolution_backward"});
  mark(table, &Traits::mixes_floats, {"mm", "bmm", "addmm", "baddbmm"});
  mark(table, &Traits::accumulates,
       {"prod",
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
        "rrelu_with_noise_"});
  mark(table, &Traits::wide_statistics, {"native_layer_norm", "native_layer_norm_backward"});
  mark(table, &Traits::counts, {"histc"});
  mark(table, &Traits::describes,
       {"empty", "empty_strided", "_efficientzerotensor", "set_", "resize_", "record_stream", "is_pinned",
        "_reshape_alias"});
  mark(table, &Traits::copies, {"copy_", "_copy_from"});
  mark(table, &Traits::overwrites,
       {"copy_", "_copy_from", "zero_", "fill_", "normal_", "uniform_", "bernoulli_", "random_", "exponential_",
        "geometric_", "log_normal_", "cauchy_", "_foreach_copy_", "_foreach_zero_"});
  mark(table, &Traits::reads_some,
       {"index", "index_select", "gather", "embedding", "take", "masked_select", "index_put_", "index_copy_",
        "index_add_", "index_fill_", "scatter_", "scatter_add_", "masked_scatter_", "masked_fill_", "_index_put_impl_",
        "put_", "fill_diagonal_", "where"});
  table["aten::native_batch_norm"].writes = {3, 4};  // running statistics
  table["aten::_copy_from"].writes = {1};
  mark(table, &Traits::composite,
       {"_to_copy",
        "copy_",
        "copy",
        "_copy_from",
        "lift",
        "lift_fresh",
        "lift_fresh_copy",
        "is_pinned",
        "_pin_memory",
        "record_stream",
        "_lazy_clone",
        "_fused_sdp_choice",
        "_has_same_storage_numel",
        "_new_zeros_with_same_feature_meta",
        "_nested_tensor_from_mask",
        "empty_like",
        "new_empty",
        "new_empty_strided",
        "_sparse_coo_tensor_with_dims",
        "_assert_async",
        "_assert_tensor_metadata",
        "_print",
        "sym_size",
        "sym_stride",
        "sym_numel",
        "sym_storage_offset",
        "is_set_to",
        "_efficientzerotensor"});
  mark(table, &Traits::host_indices,
       {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put",
        "_unsafe_masked_index", "_unsafe_masked_index_put_accumulate"});
  add_trusted(table);
  add_planned(table);
  add_card_traits(table);
  return table;
}

Table& table() {
  static auto* all = new Table(make_table());
  return *all;
}

}  // namespace

const Table& all_traits() { return table(); }

void add_traits(const std::string& name, const Traits& traits) { table()[name] = traits; }

const Traits& traits_of(const std::string& name) {
  static const auto* none = new Traits;
  const auto found = all_traits().find(name);
  return found == all_traits().end() ? *none : found->second;
}

}  // namespace softnpu
