// The RMS norms: with a residual addition or without, and their gradient, a row at a time.
//
//   softnpu::rms_norm(Tensor x, Tensor? addend, Tensor gamma, float epsilon, float shift, bool exact_sum,
//                     bool stepwise) -> (Tensor y, Tensor rstd, Tensor sum)
//   softnpu::rms_norm_backward(Tensor dy, Tensor x, Tensor gamma, Tensor rstd) -> (Tensor dx, Tensor dgamma)
//
// y = x / rms(x) * (gamma + shift) over the trailing dimensions that gamma has. With `addend`, x + addend is rounded,
// returned as `sum`, and normalized; `exact_sum` normalizes the sum before its rounding. `stepwise` rounds x / rms(x)
// before gamma is applied. Without `addend` there is no sum: it is undefined.
#include <ATen/ops/add.h>

#include <cmath>
#include <vector>

#include "vec.h"

namespace softnpu::kernels::inline CPU_CAPABILITY {
namespace {

using at::Tensor;
using at::vec::fmadd;

at::DimVector statistics_shape(const Tensor& x, int64_t inner) {
  at::DimVector shape(x.sizes());
  std::fill(shape.end() - inner, shape.end(), 1);
  return shape;
}

// gamma has the trailing dimensions of x.
void check_gamma(const Guard& guard, const Tensor& x, const Tensor& gamma) {
  guard.tensor(x, "x");
  guard.tensor(gamma, "gamma");
  guard.hold(gamma.dim() <= x.dim(), "gamma", c10::str("at most ", x.dim(), " dimensions"), gamma.sizes());
  guard.sizes(gamma, "gamma", x.sizes().slice(x.dim() - gamma.dim()));
  guard.real(gamma, "gamma");
}

template <class T>
SOFTNPU_WALK float inverse_rms(const T* x, int64_t n, float epsilon) {
  const float squares = row_sum(n, [&](int64_t i, auto c) {
    const Vec v = read(x + i, c);
    return v * v;
  });
  return 1.0f / std::sqrt(squares / static_cast<float>(n) + epsilon);
}

template <class S, class T>
SOFTNPU_WALK void normalize(const S* x, const float* gamma, int64_t n, float rstd, T* y) {
  const Vec factor(rstd);
  sweep(n, [&](int64_t i, auto c) { write(y + i, read(x + i, c) * factor * read(gamma + i, c), c); });
}

// Rounds twice: x / rms(x), then its product with gamma.
template <class S, class T>
SOFTNPU_WALK void normalize_stepwise(const S* x, const float* gamma, int64_t n, float rstd, T* y) {
  const Vec factor(rstd);
  sweep(n, [&](int64_t i, auto c) {
    write(y + i, read(x + i, c) * factor, c);
    write(y + i, read(y + i, c) * read(gamma + i, c), c);
  });
}

template <class T, class S>
SOFTNPU_WALK void add(const T* a, const T* b, int64_t n, S* sum) {
  sweep(n, [&](int64_t i, auto c) { write(sum + i, read(a + i, c) + read(b + i, c), c); });
}

std::tuple<Tensor, Tensor, Tensor> rms_norm(const Tensor& x, const MaybeTensor& addend, const Tensor& gamma,
                                            double epsilon, double shift, bool exact_sum, bool stepwise) {
  const Guard guard("rms_norm");
  check_gamma(guard, x, gamma);
  if (given(addend)) guard.like(*addend, "addend", x);
  const int64_t inner = gamma.dim();
  const Tensor scale = shift == 0 ? as_float(gamma) : at::add(as_float(gamma), shift);
  const Rows from(x, inner), other = given(addend) ? Rows(*addend, inner) : Rows();
  Result y(x, inner);
  std::optional<Result> sum;
  if (given(addend)) sum.emplace(x, inner);
  Tensor rstd = at::empty(statistics_shape(x, inner), x.options().dtype(at::kFloat));
  float* statistics = rstd.data_ptr<float>();
  const float* factors = scale.const_data_ptr<float>();
  const int64_t n = from.width;
  typed(x, "rms_norm", [&](auto type) {
    using T = decltype(type);
    parallel_rows(from.count, n, [&](int64_t begin, int64_t end) {
      Cursor in(from, begin), added(sum ? other : from, begin), out(y.rows, begin);
      Cursor total(sum ? sum->rows : from, begin);
      std::vector<float> exact(sum && exact_sum ? n : 0);
      auto finish = [&](int64_t r, const auto* v) {
        statistics[r] = inverse_rms(v, n, static_cast<float>(epsilon));
        if (stepwise) {
          normalize_stepwise(v, factors, n, statistics[r], out.row<T>());
        } else {
          normalize(v, factors, n, statistics[r], out.row<T>());
        }
      };
      for (int64_t r = begin; r < end; ++r) {
        const T* v = in.row<T>();
        if (!exact.empty()) add(v, added.row<T>(), n, exact.data());
        if (sum) {
          add(v, added.row<T>(), n, total.row<T>());
          v = total.row<T>();
        }
        if (exact.empty()) {
          finish(r, v);
        } else {
          finish(r, static_cast<const float*>(exact.data()));
        }
        for (Cursor* c : {&in, &added, &out, &total}) c->next();
      }
    });
  });
  return {y.tensor(), rstd, sum ? sum->tensor() : Tensor()};
}

// One row of dx, and what it adds to dgamma.
template <class T>
SOFTNPU_WALK void gradient(const T* dy, const T* x, const float* gamma, float rstd, int64_t n, T* dx, float* dgamma) {
  const float product =
      row_sum(n, [&](int64_t i, auto c) { return read(dy + i, c) * read(gamma + i, c) * read(x + i, c); });
  const Vec r(rstd), mean(product * rstd / static_cast<float>(n));
  sweep(n, [&](int64_t i, auto c) {
    const Vec slope = read(dy + i, c), normed = read(x + i, c) * r;
    write(dx + i, r * (slope * read(gamma + i, c) - normed * mean), c);
    write(dgamma + i, fmadd(slope, normed, read(dgamma + i, c)), c);
  });
}

std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& gamma,
                                             const Tensor& rstd) {
  const Guard guard("rms_norm_backward");
  check_gamma(guard, x, gamma);
  guard.like(dy, "dy", x);
  guard.real(rstd, "rstd");
  const int64_t inner = gamma.dim();
  const Tensor scale = as_float(gamma), statistics = as_float(rstd);
  const Rows grads(dy, inner), from(x, inner);
  guard.count(rstd, "rstd", from.count);
  Result dx(x, inner);
  const float *factors = scale.const_data_ptr<float>(), *rs = statistics.const_data_ptr<float>();
  const int64_t n = from.width;
  Partial dgamma(from.count, n, n);
  typed(x, "rms_norm_backward", [&](auto type) {
    using T = decltype(type);
    dgamma.run([&](int64_t begin, int64_t end, float* sums) {
      Cursor g(grads, begin), v(from, begin), out(dx.rows, begin);
      for (int64_t r = begin; r < end; ++r) {
        gradient(g.row<T>(), v.row<T>(), factors, rs[r], n, out.row<T>(), sums);
        for (Cursor* c : {&g, &v, &out}) c->next();
      }
    });
  });
  Tensor total = at::empty(gamma.sizes(), x.options().dtype(at::kFloat));
  std::copy_n(dgamma.total(), total.numel(), total.data_ptr<float>());
  return {dx.tensor(), total};
}

}  // namespace
}  // namespace softnpu::kernels::inline CPU_CAPABILITY

SOFTNPU_SCHEMAS(m) {
  m.def(
      "rms_norm(Tensor x, Tensor? addend, Tensor gamma, float epsilon, float shift=0.0, "
      "bool exact_sum=False, bool stepwise=False) -> (Tensor, Tensor, Tensor)");
  m.def("rms_norm_backward(Tensor dy, Tensor x, Tensor gamma, Tensor rstd) -> (Tensor, Tensor)");
}

SOFTNPU_KERNELS(rms_norm, m) {
  m.impl("rms_norm", softnpu::kernels::rms_norm);
  m.impl("rms_norm_backward", softnpu::kernels::rms_norm_backward);
}
