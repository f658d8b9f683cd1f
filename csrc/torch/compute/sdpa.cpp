// scaled_dot_product_attention: PyTorch's blocked CPU kernel on fp32 copies, without memory of size Sq x Skv.
#include <ATen/core/Tensor.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "kernels/guard.h"
#include "torch/compute/widen.h"
#include "torch/dispatch/native_kernel.h"

namespace softnpu {

namespace {

using at::Tensor;
using std::optional;

int64_t choose(const Tensor& query, const Tensor& key, const Tensor& value, const optional<Tensor>& mask,
               double dropout, bool, optional<double>, bool grouped) {
  auto plain = [](const Tensor& t) {
    return t.dim() == 4 && t.numel() > 0 && !t.is_nested() && t.is_floating_point() && t.stride(-1) == 1;
  };
  const bool fits = plain(query) && plain(key) && plain(value) && query.size(-1) == key.size(-1) &&
                    key.size(-1) == value.size(-1) && query.size(0) == key.size(0) && query.size(1) == key.size(1);
  const bool mask_fits =
      !mask.has_value() || (!mask->requires_grad() && (mask->dim() == 2 || mask->dim() == 4) &&
                            (mask->scalar_type() == at::kBool || mask->scalar_type() == query.scalar_type()));
  const bool fused = fits && mask_fits && dropout == 0 && !grouped && at::globalContext().userEnabledFlashSDP();
  return static_cast<int64_t>(fused ? sdp::SDPBackend::overrideable : sdp::SDPBackend::math);
}

Tensor prepare_mask(const Tensor& mask, bool half) {
  return half && mask.defined() && mask.is_floating_point() ? widened(mask) : mask;
}

// The borrowed kernels walk key, value and what belongs to the rows by the sizes of query and key.
void check_sizes(const kernels::Guard& guard, const Tensor& query, const Tensor& key, const Tensor& value) {
  for (const auto& [t, name] : {std::pair{&query, "query"}, {&key, "key"}, {&value, "value"}}) guard.rank(*t, name, 4);
  guard.sizes(key, "key", {query.size(0), query.size(1), key.size(2), query.size(3)});
  guard.sizes(value, "value", key.sizes());
}

using Forward = std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>;

Forward forward(const Tensor& query, const Tensor& key, const Tensor& value, const optional<Tensor>& mask,
                double dropout, bool causal, bool, optional<double> scale) {
  TORCH_CHECK(dropout == 0, "_scaled_dot_product_fused_attention_overrideable: dropout_p must be 0, got ", dropout);
  const kernels::Guard guard("_scaled_dot_product_fused_attention_overrideable", "aten::");
  check_sizes(guard, query, key, value);
  const Tensor given_mask = mask.value_or(Tensor());
  NativeKernel launch("aten::_scaled_dot_product_fused_attention_overrideable", {&query, &key, &value, &given_mask});
  const Tensor q = launch.in(query), k = launch.in(key), v = launch.in(value);
  const bool half = all_half({&q, &k, &v});
  const Tensor bias = prepare_mask(launch.in(mask), half);
  auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
      half ? widened(q) : q, half ? widened(k) : k, half ? widened(v) : v, 0.0, causal,
      bias.defined() ? optional<Tensor>(bias) : std::nullopt, scale);
  if (half) out = out.to(query.scalar_type());
  auto nothing = [&] { return launch.out(at::empty({0}, q.options().dtype(at::kLong))); };
  return {launch.out(std::move(out)),
          launch.out(std::move(lse)),
          nothing(),
          nothing(),
          query.sym_size(2),
          key.sym_size(2),
          nothing(),
          nothing(),
          nothing()};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward(const Tensor& grad, const Tensor& query, const Tensor& key,
                                                    const Tensor& value, const Tensor& mask, std::array<bool, 4>,
                                                    const Tensor& out, const Tensor& lse, const Tensor&, const Tensor&,
                                                    c10::SymInt, c10::SymInt, double, bool causal, const Tensor&,
                                                    const Tensor&, optional<double> scale) {
  if (!grad.defined()) return {};
  const kernels::Guard guard("_scaled_dot_product_fused_attention_overrideable_backward", "aten::");
  check_sizes(guard, query, key, value);
  guard.sizes(grad, "grad_out", query.sizes());
  guard.sizes(out, "out", query.sizes());
  guard.sizes(lse, "logsumexp", {query.size(0), query.size(1), query.size(2)});
  NativeKernel launch("aten::_scaled_dot_product_fused_attention_overrideable_backward",
                      {&grad, &query, &key, &value, &out});
  const Tensor q = launch.in(query), k = launch.in(key), v = launch.in(value), g = launch.in(grad), o = launch.in(out);
  const bool half = all_half({&q, &k, &v, &g});
  const Tensor bias = prepare_mask(launch.in(mask), half);
  auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      half ? widened(g) : g, half ? widened(q) : q, half ? widened(k) : k, half ? widened(v) : v, half ? widened(o) : o,
      launch.in(lse), 0.0, causal, bias.defined() ? optional<Tensor>(bias) : std::nullopt, scale);
  auto done = [&](Tensor t) { return launch.out(half ? t.to(query.scalar_type()) : std::move(t)); };
  return {done(std::move(dq)), done(std::move(dk)), done(std::move(dv)), Tensor()};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_fused_sdp_choice", &choose);
  SOFTNPU_LAUNCHED(m, "_scaled_dot_product_fused_attention_overrideable", forward);
  SOFTNPU_LAUNCHED(m, "_scaled_dot_product_fused_attention_overrideable_backward", backward);
}

}  // namespace

}  // namespace softnpu

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &softnpu::choose)
}
