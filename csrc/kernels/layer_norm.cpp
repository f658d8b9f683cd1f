// npu_layer_norm_eval, and group normalisation with Swish and its gradient.
//
//   softnpu::layer_norm(Tensor x, int inner, Tensor? weight, Tensor? bias, float eps) -> Tensor
//   softnpu::group_norm_swish(Tensor x, int groups, Tensor? weight, Tensor? bias, float eps, float scale)
//       -> (Tensor y, Tensor mean, Tensor rstd)
//   softnpu::group_norm_swish_backward(Tensor dy, Tensor x, int groups, Tensor weight, Tensor bias, Tensor mean,
//       Tensor rstd, float scale) -> (Tensor dx, Tensor dweight, Tensor dbias)
//
// x is fp32, bf16 or fp16, results have its type and are contiguous; statistics and the gradients of weight and bias
// come in fp32, weight and bias may be of any of the three types.
#include <torch/library.h>

#include <cmath>

#include "vec.h"

namespace softnpu::kernels {
namespace {

using at::Tensor;
using at::vec::fmadd;

struct Moments {
  float mean, rstd;
};

template <class T>
SOFTNPU_WALK Moments moments(const T* x, int64_t n, float eps) {
  const float count = static_cast<float>(n);
  const float mean = row_sum(n, [&](int64_t i, auto c) { return read(x + i, c); }) / count;
  const float variance = row_sum(n, [&](int64_t i, auto c) {
    const Vec away = read(x + i, c) - Vec(mean);
    return away * away;
  });
  return {mean, 1.0f / std::sqrt(variance / count + eps)};
}

Tensor float_or_none(const MaybeTensor& t) { return given(t) ? as_float(*t) : Tensor(); }

// --- layer norm ---------------------------------------------------------------------------------------------------

template <class T>
SOFTNPU_WALK void normalise(const T* x, int64_t n, const Moments& m, const float* weight, const float* bias, T* y) {
  const Vec mean(m.mean), rstd(m.rstd);
  sweep(n, [&](int64_t i, auto c) {
    Vec v = (read(x + i, c) - mean) * rstd;
    if (weight != nullptr) v = v * read(weight + i, c);
    if (bias != nullptr) v = v + read(bias + i, c);
    write(y + i, v, c);
  });
}

Tensor layer_norm(const Tensor& x, int64_t inner, const MaybeTensor& weight, const MaybeTensor& bias, double eps) {
  const Rows from(x, inner);
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
        normalise(v, n, moments(v, n, static_cast<float>(eps)), data_or_null(scale), data_or_null(shift), out + r * n);
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

Channels channels_of(const Tensor& x, int64_t groups, const Tensor& weight, const Tensor& bias) {
  const int64_t channels = x.size(1), samples = std::max<int64_t>(1, x.size(0) * channels);
  return {groups, channels / groups, x.numel() / samples, data_or_null(weight), data_or_null(bias)};
}

template <class T>
SOFTNPU_WALK void activate(const T* x, int64_t n, const Moments& m, float weight, float bias, float scale, T* y) {
  const Vec mean(m.mean), rstd(m.rstd), w(weight), b(bias), s(scale);
  sweep(n, [&](int64_t i, auto c) { write(y + i, swish(fmadd((read(x + i, c) - mean) * rstd, w, b), s), c); });
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

// dz = dy * swish'(z) of one channel into `dz`; returns the sums of dz and of dz times the normalised x.
template <class T>
SOFTNPU_WALK std::pair<float, float> slopes(const T* dy, const T* x, int64_t n, const Moments& m, float weight,
                                            float bias, float scale, float* dz) {
  const Vec mean(m.mean), rstd(m.rstd), w(weight), b(bias), s(scale);
  const float total = row_sum(n, [&](int64_t i, auto c) {
    const Vec z = fmadd((read(x + i, c) - mean) * rstd, w, b);
    const Vec d = read(dy + i, c) * swish_slope(z, s);
    write(dz + i, d, c);
    return d;
  });
  const float product =
      row_sum(n, [&](int64_t i, auto c) { return read(dz + i, c) * ((read(x + i, c) - mean) * rstd); });
  return {total, product};
}

template <class T>
SOFTNPU_WALK void input_gradient(const float* dz, const T* x, int64_t n, const Moments& m, float weight, float mean_dz,
                                 float mean_product, T* dx) {
  const Vec mean(m.mean), rstd(m.rstd), w(weight), centre(mean_dz), along(mean_product);
  sweep(n, [&](int64_t i, auto c) {
    const Vec normed = (read(x + i, c) - mean) * rstd;
    write(dx + i, rstd * (read(dz + i, c) * w - centre - normed * along), c);
  });
}

std::tuple<Tensor, Tensor, Tensor> group_norm_swish_backward(const Tensor& dy, const Tensor& x, int64_t groups,
                                                             const Tensor& weight, const Tensor& bias,
                                                             const Tensor& mean, const Tensor& rstd, double scale) {
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
          const auto [s, p] = slopes(gs + start + at, xs + start + at, ch.area, m, w, ch.bias_of(first + c),
                                     static_cast<float>(scale), dz.data() + at);
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
}  // namespace softnpu::kernels

TORCH_LIBRARY_FRAGMENT(softnpu, m) {
  m.def("layer_norm(Tensor x, int inner, Tensor? weight, Tensor? bias, float eps) -> Tensor");
  m.def(
      "group_norm_swish(Tensor x, int groups, Tensor? weight, Tensor? bias, float eps, float scale) "
      "-> (Tensor, Tensor, Tensor)");
  m.def(
      "group_norm_swish_backward(Tensor dy, Tensor x, int groups, Tensor weight, Tensor bias, Tensor mean, "
      "Tensor rstd, float scale) -> (Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(softnpu, CPU, m) {
  using namespace softnpu::kernels;
  m.impl("layer_norm", TORCH_FN(layer_norm));
  m.impl("group_norm_swish", TORCH_FN(group_norm_swish));
  m.impl("group_norm_swish_backward", TORCH_FN(group_norm_swish_backward));
}
