#include "torch/dispatch/operator_traits.h"

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
  for (const char* name : {"prod", "logsumexp", "_log_softmax", "_logcumsumexp", "logcumsumexp", "cumprod"}) {
    table[std::string("aten::") + name].accumulates = true;
  }
  for (const char* name : {"empty", "empty_strided", "_efficientzerotensor", "set_", "resize_", "record_stream",
                           "is_pinned", "_reshape_alias"}) {
    table[std::string("aten::") + name].describes = true;
  }
  for (const char* name : {"copy_", "zero_", "fill_", "normal_", "uniform_", "bernoulli_", "random_"}) {
    table[std::string("aten::") + name].overwrites = true;
  }
  table["npu::npu_top_k_top_p"].infinite = true;
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
