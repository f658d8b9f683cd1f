// npu_layer_norm_eval, and group normalization with Swish and its gradient.
//
//   softnpu::layer_norm(Tensor x, int inner, Tensor? weight, Tensor? bias, float eps) -> Tensor
//   softnpu::group_norm_swish(Tensor x, int groups, Tensor? weight, Tensor? bias, float eps, float scale)
//       -> (Tensor y, Tensor mean, Tensor rstd)
//   softnpu::group_norm_swish_backward(Tensor dy, Tensor x, int groups, Tensor weight, Tensor bias, Tensor mean,
//       Tensor rstd, float scale) -> (Tensor dx, Tensor dweight, Tensor dbias)
//
// x is fp32, bf16 or fp16, results have its type and are contiguous; statistics and the gradients of weight and bias
// come in fp32, weight and bias may be of any of the three types.
#include <cmath>

#include "elementwise.h"

namespace softnpu::kernels::inline CPU_CAPABILITY {
namespace {

using at::Tensor;
using at::vec::fmadd;

constexpr int64_t kPiece = 4096;  // elements that stay in the first-level cache

struct Moments {
  float mean, rstd;
};

// The mean of a piece, and the sum of squares away from it.
template <class T>
SOFTNPU_WALK std::pair<float, float> spread(const T* x, int64_t n) {
  const float mean = row_sum(n, [&](int64_t i, auto c) { return read(x + i, c); }) / static_cast<float>(n);
  const float squares = row_sum(n, [&](int64_t i, auto c) {
    const Vec away = read(x + i, c) - Vec(mean);
    return away * away;
  });
  return {mean, squares};
}

// One pass over memory: pieces that stay in the first-level cache are looked at twice, and joined.
template <class T>
Moments moments(const T* x, int64_t n, float eps) {
  double mean = 0, squares = 0;
  for (int64_t i = 0; i < n; i += kPiece) {
    const int64_t count = std::min(kPiece, n - i);
    const auto [middle, around] = spread(x + i, count);
    const double away = middle - mean, share = static_cast<double>(count) / static_cast<double>(i + count);
    mean += away * share;
    squares += around + away * away * share * static_cast<double>(i);
  }
  const double variance = squares / static_cast<double>(n);
  return {static_cast<float>(mean), static_cast<float>(1.0 / std::sqrt(variance + eps))};
}

Tensor float_or_none(const MaybeTensor& t) { return given(t) ? as_float(*t) : Tensor(); }

void check_factor(const Guard& guard, const MaybeTensor& t, const char* argument, int64_t count) {
  if (!given(t)) return;
  guard.count(*t, argument, count);
  guard.real(*t, argument);
}

// --- layer norm ---------------------------------------------------------------------------------------------------

template <class T>
SOFTNPU_WALK void normalize(const T* x, int64_t n, const Moments& m, const float* weight, const float* bias, T* y) {
  const Vec mean(m.mean), rstd(m.rstd);
  sweep(n, [&](int64_t i, auto c) {
    Vec v = (read(x + i, c) - mean) * rstd;
    if (weight != nullptr) v = v * read(weight + i, c);
    if (bias != nullptr) v = v + read(bias + i, c);
    write(y + i, v, c);
  });
}

Tensor layer_norm(const Tensor& x, int64_t inner, const MaybeTensor& weight, const MaybeTensor& bias, double eps) {
  const Guard guard("layer_norm");
  guard.tensor(x, "x");
  guard.hold(inner >= 0 && inner <= x.dim(), "inner", c10::str("in [0, ", x.dim(), "]"), inner);
  const Rows from(x, inner);
  check_factor(guard, weight, "weight", from.width);
  check_factor(guard, bias, "bias", from.width);
  const Tensor scale = float_or_none(weight), shift = float_or_none(bias);
  Tensor y = at::empty(x.sizes(), x.options());
  const int64_t n = from.width;
  typed(x, "layer_norm", [&](auto type) {
    using T = decltype(type);
    T* out = y.data_ptr<T>();
    parallel_rows(from.count, n, [&](int64_t begin, int64_t end) {
      Cursor at(from, begin);
      for (int64_t r = begin; r < end; ++r, at.next()) {
        const T* v = at.row<T>();
        normalize(v, n, moments(v, n, static_cast<float>(eps)), data_or_null(scale), data_or_null(shift), out + r * n);
      }
    });
  });
  return y;
}

// --- group norm ---------------------------------------------------------------------------------------------------

// What the channels of a group have in common: `area` elements each, one weight and one bias.
struct Channels {
  int64_t groups, per_group, area;
  const float *weight, *bias;

  float weight_of(int64_t c) const { return weight == nullptr ? 1.0f : weight[c]; }
  float bias_of(int64_t c) const { return bias == nullptr ? 0.0f : bias[c]; }
  int64_t size() const { return per_group * area; }
};

// x is (N, C, ...), and C a multiple of the groups.
void check_groups(const Guard& guard, const Tensor& x, int64_t groups) {
  guard.least_rank(x, "x", 2);
  guard.hold(groups > 0 && x.size(1) % groups == 0, "groups", c10::str("a positive divisor of ", x.size(1)), groups);
}

Channels channels_of(const Tensor& x, int64_t groups, const Tensor& weight, const Tensor& bias) {
  const int64_t channels = x.size(1), samples = std::max<int64_t>(1, x.size(0) * channels);
  return {groups, channels / groups, x.numel() / samples, data_or_null(weight), data_or_null(bias)};
}

template <class T>
SOFTNPU_WALK void activate(const T* x, int64_t n, const Moments& m, float weight, float bias, float scale, T* y) {
  const Vec mean(m.mean), w(m.rstd * weight), b(bias), s(scale);
  const auto active = [&](const Vec& v) { return swish(fmadd(v - mean, w, b), s); };
  elements<T>(x, n, y, active);
}

// One element a channel: the weights of a group lie side by side.
template <class T>
SOFTNPU_WALK void activate_each(const T* x, int64_t n, const Moments& m, const float* weight, const float* bias,
                                float scale, T* y) {
  const Vec mean(m.mean), rstd(m.rstd), s(scale);
  sweep(n, [&](int64_t i, auto c) {
    Vec v = (read(x + i, c) - mean) * rstd;
    if (weight != nullptr) v = v * read(weight + i, c);
    if (bias != nullptr) v = v + read(bias + i, c);
    write(y + i, swish(v, s), c);
  });
}

std::tuple<Tensor, Tensor, Tensor> group_norm_swish(const Tensor& x, int64_t groups, const MaybeTensor& weight,
                                                    const MaybeTensor& bias, double eps, double scale) {
  const Guard guard("group_norm_swish");
  check_groups(guard, x, groups);
  check_factor(guard, weight, "weight", x.size(1));
  check_factor(guard, bias, "bias", x.size(1));
  const Tensor in = x.contiguous(), gamma = float_or_none(weight), beta = float_or_none(bias);
  const Channels ch = channels_of(x, groups, gamma, beta);
  Tensor y = at::empty(x.sizes(), x.options());
  Tensor mean = at::empty({x.size(0), groups}, x.options().dtype(at::kFloat)), rstd = at::empty_like(mean);
  float *means = mean.data_ptr<float>(), *rstds = rstd.data_ptr<float>();
  const float s = static_cast<float>(scale);
  typed(x, "group_norm_swish", [&](auto type) {
    using T = decltype(type);
    const T* from = in.const_data_ptr<T>();
    T* to = y.data_ptr<T>();
    parallel_rows(mean.numel(), ch.size(), [&](int64_t begin, int64_t end) {
      for (int64_t g = begin; g < end; ++g) {
        const T* v = from + g * ch.size();
        T* out = to + g * ch.size();
        const Moments m = moments(v, ch.size(), static_cast<float>(eps));
        means[g] = m.mean;
        rstds[g] = m.rstd;
        const int64_t first = g % groups * ch.per_group;
        if (ch.area == 1) {
          activate_each(v, ch.per_group, m, ch.weight ? ch.weight + first : nullptr,
                        ch.bias ? ch.bias + first : nullptr, s, out);
          continue;
        }
        for (int64_t c = 0; c < ch.per_group; ++c) {
          activate(v + c * ch.area, ch.area, m, ch.weight_of(first + c), ch.bias_of(first + c), s, out + c * ch.area);
        }
      }
    });
  });
  return {y, mean, rstd};
}

// dz = dy * swish'(z) of one channel into `dz`; returns the sums of dz and of dz times the normalized x.
template <class T>
SOFTNPU_WALK std::pair<float, float> slopes(const T* dy, const T* x, int64_t n, const Moments& m, float weight,
                                            float bias, float scale, float* dz) {
  const Vec mean(m.mean), w(m.rstd * weight), b(bias), s(scale);
  Vec total(0.0f), product(0.0f);
  sweep(n, [&](int64_t i, auto c) {
    const Vec away = read(x + i, c) - mean;
    const Vec d = read(dy + i, c) * swish_slope(fmadd(away, w, b), s);  // 0 past the end, as dy is
    write(dz + i, d, c);
    total = total + d;
    product = fmadd(d, away, product);
  });
  return {sum(total), sum(product) * m.rstd};
}

template <class T>
SOFTNPU_WALK void input_gradient(const float* dz, const T* x, int64_t n, const Moments& m, float weight, float mean_dz,
                                 float mean_product, T* dx) {
  const Vec mean(m.mean), w(m.rstd * weight), center(-m.rstd * mean_dz), along(-m.rstd * m.rstd * mean_product);
  sweep(n, [&](int64_t i, auto c) {
    write(dx + i, fmadd(read(dz + i, c), w, fmadd(read(x + i, c) - mean, along, center)), c);
  });
}

std::tuple<Tensor, Tensor, Tensor> group_norm_swish_backward(const Tensor& dy, const Tensor& x, int64_t groups,
                                                             const Tensor& weight, const Tensor& bias,
                                                             const Tensor& mean, const Tensor& rstd, double scale) {
  const Guard guard("group_norm_swish_backward");
  check_groups(guard, x, groups);
  guard.like(dy, "dy", x);
  for (const auto& [t, name] : {std::pair{&weight, "weight"}, {&bias, "bias"}}) {
    guard.tensor(*t, name);
    check_factor(guard, *t, name, x.size(1));
  }
  for (const auto& [t, name] : {std::pair{&mean, "mean"}, {&rstd, "rstd"}}) {
    guard.tensor(*t, name);
    check_factor(guard, *t, name, guard.product(x.size(0), groups, "groups"));
  }
  const Tensor grads = dy.contiguous(), in = x.contiguous(), gamma = as_float(weight), beta = as_float(bias);
  const Tensor means = as_float(mean), rstds = as_float(rstd);
  const Channels ch = channels_of(x, groups, gamma, beta);
  const int64_t channels = x.size(1);
  Tensor dx = at::empty(x.sizes(), x.options());
  Partial parameters(means.numel(), ch.size(), 2 * channels);
  typed(x, "group_norm_swish_backward", [&](auto type) {
    using T = decltype(type);
    const T *gs = grads.const_data_ptr<T>(), *xs = in.const_data_ptr<T>();
    T* to = dx.data_ptr<T>();
    parameters.run([&](int64_t begin, int64_t end, float* sums) {
      std::vector<float> dz(ch.size());
      for (int64_t g = begin; g < end; ++g) {
        const int64_t start = g * ch.size(), first = g % groups * ch.per_group;
        const Moments m{means.const_data_ptr<float>()[g], rstds.const_data_ptr<float>()[g]};
        float total = 0, along = 0;
        for (int64_t c = 0; c < ch.per_group; ++c) {
          const int64_t at = c * ch.area;
          const float w = ch.weight_of(first + c);
          float s = 0, p = 0;
          for (int64_t i = at; i < at + ch.area; i += kPiece) {
            const auto [piece, product] = slopes(gs + start + i, xs + start + i, std::min(kPiece, at + ch.area - i), m,
                                                 w, ch.bias_of(first + c), static_cast<float>(scale), dz.data() + i);
            s += piece;
            p += product;
          }
          sums[first + c] += p;
          sums[channels + first + c] += s;
          total += w * s;
          along += w * p;
        }
        const float count = static_cast<float>(ch.size());
        for (int64_t c = 0; c < ch.per_group; ++c) {
          const int64_t at = c * ch.area;
          input_gradient(dz.data() + at, xs + start + at, ch.area, m, ch.weight_of(first + c), total / count,
                         along / count, to + start + at);
        }
      }
    });
  });
  Tensor dweight = at::empty({channels}, x.options().dtype(at::kFloat)), dbias = at::empty_like(dweight);
  const float* found = parameters.total();
  std::copy_n(found, channels, dweight.data_ptr<float>());
  std::copy_n(found + channels, channels, dbias.data_ptr<float>());
  return {dx, dweight, dbias};
}

}  // namespace
}  // namespace softnpu::kernels::inline CPU_CAPABILITY

SOFTNPU_SCHEMAS(m) {
  m.def("layer_norm(Tensor x, int inner, Tensor? weight, Tensor? bias, float eps) -> Tensor");
  m.def(
      "group_norm_swish(Tensor x, int groups, Tensor? weight, Tensor? bias, float eps, float scale) "
      "-> (Tensor, Tensor, Tensor)");
  m.def(
      "group_norm_swish_backward(Tensor dy, Tensor x, int groups, Tensor weight, Tensor bias, Tensor mean, "
      "Tensor rstd, float scale) -> (Tensor, Tensor, Tensor)");
}

SOFTNPU_KERNELS(layer_norm, m) {
  using namespace softnpu::kernels;
  m.impl("layer_norm", layer_norm);
  m.impl("group_norm_swish", group_norm_swish);
  m.impl("group_norm_swish_backward", group_norm_swish_backward);
}
