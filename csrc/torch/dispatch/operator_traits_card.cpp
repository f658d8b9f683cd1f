// The part of the traits table that is about the card and its graph engine.
#include <iterator>
#include <sstream>
#include <utility>

#include "torch/dispatch/operator_traits.h"

namespace softnpu {

namespace {

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
    {"amin", "ReduceMin"},
    {"bitwise_not", "Invert"},
    {"silu", "Swish"},
    {"div", "RealDiv"},
    {"remainder", "FloorMod"},
    {"floor_divide", "FloorDiv"},
    {"eq", "Equal"},
    {"ne", "NotEqual"},
    {"lt", "Less"},
    {"le", "LessEqual"},
    {"gt", "Greater"},
    {"ge", "GreaterEqual"},
    {"isfinite", "IsFinite"},
    {"isinf", "IsInf"},
    {"isnan", "IsNan"},
};

// ATen's operators that neither op_plugin_functions.yaml of op-plugin nor npu_native_functions.yaml of torch_npu lists,
// and that have no composite kernel of PyTorch's, or one that calls such an operator.
constexpr char kLacking[] = R"(
_batch_norm_with_update _batch_norm_with_update.out _cholesky_solve_helper _compute_linear_combination
_compute_linear_combination.out _ctc_loss.Tensor _ctc_loss_backward.Tensor _dirichlet_grad _embedding_bag_backward
_embedding_bag_dense_backward _fake_quantize_learnable_per_channel_affine
_fake_quantize_learnable_per_channel_affine_backward _fake_quantize_learnable_per_tensor_affine
_fake_quantize_learnable_per_tensor_affine_backward _fused_adagrad_ _fused_adagrad_.tensor_lr _fused_adam_
_fused_adam_.tensor_lr _fused_adamw_.tensor_lr _histogramdd_bin_edges _histogramdd_from_bin_tensors _int_mm
_int_mm.out _linalg_det _linalg_det.result _linalg_eigh _linalg_eigh.eigenvalues _linalg_eigvals _linalg_slogdet
_linalg_slogdet.sign _linalg_solve_ex _linalg_solve_ex.result _logcumsumexp _logcumsumexp.out _masked_softmax_backward
_native_batch_norm_legit.no_stats _native_batch_norm_legit.no_stats_out _native_batch_norm_legit.out _pdist_backward
_sample_dirichlet _scaled_mm.out _scaled_mm_v2.out _segment_reduce_backward _slow_conv2d_backward.grad_input
_sparse_csr_prod.dim_dtype _sparse_csr_sum.dim_dtype _standard_gamma _standard_gamma_grad _weight_int8pack_mm
_weight_norm_interface _weight_norm_interface_backward batch_norm_backward batch_norm_update_stats binomial cauchy_
cholesky cholesky.out cholesky_inverse cholesky_inverse.out conj_physical.out copysign.Tensor copysign.out
copysign_.Tensor digamma digamma.out digamma_ fake_quantize_per_tensor_affine_cachemask fmax fmax.out fmin fmin.out
fractional_max_pool2d fractional_max_pool2d.output fractional_max_pool2d_backward
fractional_max_pool2d_backward.grad_input fractional_max_pool3d fractional_max_pool3d.output
fractional_max_pool3d_backward fractional_max_pool3d_backward.grad_input frexp.Tensor_out gelu_backward.grad_input
geometric_ geqrf geqrf.a glu_backward_jvp glu_jvp hardsigmoid_backward.grad_input hash_tensor hash_tensor.out
heaviside heaviside.out heaviside_ histogram.bin_ct histogram.bin_ct_out histogram.bins_tensor
histogram.bins_tensor_out huber_loss huber_loss.out huber_loss_backward.out hypot hypot.out hypot_ i0 i0.out i0_
igamma igamma.out igamma_ igammac igammac.out igammac_ index.Tensor_out index_reduce index_reduce.out index_reduce_
lcm lcm.out lcm_ lgamma lgamma.out lgamma_ linalg_cholesky_ex linalg_cholesky_ex.L linalg_eig linalg_eig.out
linalg_eigvals.out linalg_householder_product linalg_householder_product.out linalg_inv_ex linalg_inv_ex.inverse
linalg_ldl_factor_ex linalg_ldl_factor_ex.out linalg_ldl_solve linalg_ldl_solve.out linalg_lstsq.out linalg_lu
linalg_lu.out linalg_lu_factor_ex linalg_lu_factor_ex.out linalg_lu_solve linalg_lu_solve.out linalg_matrix_exp
log_normal_ lu_unpack lu_unpack.out max.unary_out min.unary_out mode multi_margin_loss multi_margin_loss.out
multi_margin_loss_backward multi_margin_loss_backward.grad_input multilabel_margin_loss_backward
multilabel_margin_loss_backward.grad_input mvlgamma.out nanmedian.dim_values nextafter nextafter.out nextafter_
nonzero_static nonzero_static.out ormqr ormqr.out poisson polygamma polygamma.out scatter.reduce scatter.reduce_out
scatter.value_reduce scatter.value_reduce_out scatter_.reduce scatter_.value_reduce scatter_add.out
searchsorted.Scalar_out segment_reduce slow_conv_dilated3d slow_conv_transpose3d slow_conv_transpose3d.out
special_airy_ai special_airy_ai.out special_bessel_j0 special_bessel_j0.out special_bessel_j1 special_bessel_j1.out
special_bessel_y0 special_bessel_y0.out special_bessel_y1 special_bessel_y1.out special_chebyshev_polynomial_t
special_chebyshev_polynomial_t.out special_chebyshev_polynomial_u special_chebyshev_polynomial_u.out
special_chebyshev_polynomial_v special_chebyshev_polynomial_v.out special_chebyshev_polynomial_w
special_chebyshev_polynomial_w.out special_entr special_entr.out special_erfcx special_erfcx.out
special_hermite_polynomial_h special_hermite_polynomial_h.out special_hermite_polynomial_he
special_hermite_polynomial_he.out special_i0e special_i0e.out special_i1 special_i1.out special_i1e special_i1e.out
special_laguerre_polynomial_l special_laguerre_polynomial_l.out special_legendre_polynomial_p
special_legendre_polynomial_p.out special_log_ndtr special_log_ndtr.out special_modified_bessel_i0
special_modified_bessel_i0.out special_modified_bessel_i1 special_modified_bessel_i1.out special_modified_bessel_k0
special_modified_bessel_k0.out special_modified_bessel_k1 special_modified_bessel_k1.out special_ndtri
special_ndtri.out special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k0.out
special_scaled_modified_bessel_k1 special_scaled_modified_bessel_k1.out special_shifted_chebyshev_polynomial_t
special_shifted_chebyshev_polynomial_t.out special_shifted_chebyshev_polynomial_u
special_shifted_chebyshev_polynomial_u.out special_shifted_chebyshev_polynomial_v
special_shifted_chebyshev_polynomial_v.out special_shifted_chebyshev_polynomial_w
special_shifted_chebyshev_polynomial_w.out special_spherical_bessel_j0 special_spherical_bessel_j0.out special_xlog1py
special_xlog1py.out special_zeta special_zeta.out sspaddmm.out threshold_backward.grad_input unique_dim_consecutive
upsample_linear1d_backward.grad_input
)";

// ATen's operators that are neither core nor taken apart into core, and that upstream's graphs hold all the same.
constexpr char kGraphNodes[] = R"(
_amp_foreach_non_finite_check_and_unscale _amp_foreach_non_finite_check_and_unscale_ _amp_update_scale
_batch_norm_no_update _batch_norm_with_update_functional _embedding_bag _embedding_bag_backward
_embedding_bag_dense_backward _embedding_bag_forward_only _grouped_mm _int_mm _native_batch_norm_legit_functional
_reshape_alias _scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward
_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward
_scaled_dot_product_fused_attention_overrideable _scaled_dot_product_fused_attention_overrideable_backward
_thnn_fused_lstm_cell _thnn_fused_lstm_cell_backward_impl as_strided_scatter batch_norm_backward_elemt
batch_norm_backward_reduce batch_norm_elemt batch_norm_gather_stats_with_counts batch_norm_stats bincount
convolution_backward_overrideable convolution_overrideable copy_ div erfinv grid_sampler_2d_backward grid_sampler_3d
histc kthvalue lift_fresh_copy linalg_inv_ex linalg_vector_norm logcumsumexp matmul_backward max median min mode
native_dropout native_dropout_backward new_empty_strided nanmedian randperm remainder replication_pad1d_backward
replication_pad2d_backward replication_pad3d_backward reflection_pad1d_backward reflection_pad2d_backward reshape
searchsorted set_ sum unique_consecutive unique_dim _unique2 upsample_nearest1d_backward upsample_nearest2d_backward
upsample_nearest3d_backward view_as_complex view_as_real
)";

std::vector<std::string> words_of(const char* text) {
  std::istringstream words(text);
  return {std::istream_iterator<std::string>(words), {}};
}

}  // namespace

void add_card_traits(TraitsTable& table) {
  for (const auto& [name, type] : kTypes) table[std::string("aten::") + name].type = type;
  for (const char* name :
       {"matmul", "linear", "_int_mm", "convolution_overrideable", "convolution_backward_overrideable"}) {
    table[std::string("aten::") + name].core = "AI_CORE";
  }
  for (const char* name : {"_scaled_dot_product_fused_attention_overrideable",
                           "_scaled_dot_product_fused_attention_overrideable_backward"}) {
    table[std::string("aten::") + name].core = "MIX_AIC";
  }
  for (auto& [name, traits] : table) {
    if (traits.copies) traits.core = "SDMA_SQE";
  }
  for (const std::string& word : words_of(kLacking)) {
    const size_t dot = word.find('.');
    table["aten::" + word.substr(0, dot)].lacking.push_back(dot == std::string::npos ? "" : word.substr(dot + 1));
  }
  for (const std::string& word : words_of(kGraphNodes)) table["aten::" + word].graph_node = true;
}

}  // namespace softnpu
