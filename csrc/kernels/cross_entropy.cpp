// npu_cross_entropy_loss by rows: log-probabilities and what the loss takes of them, and the gradient.
//
//   softnpu::cross_entropy(Tensor x, Tensor target, Tensor? weight, bool smooth)
//       -> (Tensor log_prob, Tensor picked, Tensor weighted)
//   softnpu::cross_entropy_backward(Tensor log_prob, Tensor target, Tensor at_target, Tensor? spread, Tensor? weight)
//       -> Tensor
//
// x is (N, C). picked (N) is the log-probability of the target and weighted (N) the sum of weight * log-probability,
// if `smooth` asks for it; both fp32, unrounded. The gradient of a row is
// softmax * sum(h) - h with h = at_target at the target, plus spread * weight everywhere.
#include <cmath>

#include "vec.h"

namespace softnpu::kernels::inline CPU_CAPABILITY {
namespace {

using at::Tensor;

constexpr int64_t kBlock = 2048;  // elements that stay in the first cache between two looks at them

struct Normalizer {
  float top, log_sum;
};

template <class T>
SOFTNPU_WALK Normalizer normalizer(const T* x, int64_t n) {
  float top = -std::numeric_limits<float>::infinity();
  double total = 0;
  for (int64_t start = 0; start < n; start += kBlock) {
    const T* block = x + start;
    const int64_t size = std::min(kBlock, n - start);
    const float peak = row_max(size, [&](int64_t i, auto c) { return read(block + i, c); });
    if (!(peak <= top)) {  // larger, or NaN
      total *= std::exp(static_cast<double>(top) - peak);
      top = peak;
    }
    if (top == -std::numeric_limits<float>::infinity()) continue;
    total += row_sum(size, [&](int64_t i, auto c) { return first(exp(read(block + i, c) - Vec(top)), c, Vec(0.0f)); });
  }
  if (std::isinf(top)) total = std::numeric_limits<float>::quiet_NaN();
  return {top, static_cast<float>(std::log(total))};
}

template <class T>
SOFTNPU_WALK float log_probabilities(const T* x, int64_t n, const Normalizer& by, const float* weight, bool smooth,
                                     T* y) {
  const Vec top(by.top), log_sum(by.log_sum);
  const auto value = [&](int64_t i, auto c) {
    const Vec v = read(x + i, c) - top - log_sum;
    write(y + i, v, c);
    return v;
  };
  if (!smooth) {
    sweep(n, value);
    return 0.0f;
  }
  if (weight == nullptr) return row_sum(n, value);
  return row_sum(n, [&](int64_t i, auto c) { return value(i, c) * read(weight + i, c); });
}

// One class a row, and one weight a class.
void check_classes(const Guard& guard, const Tensor& x, const Tensor& target, const MaybeTensor& weight) {
  guard.dtype(target, "target", {at::kLong});
  guard.count(target, "target", x.size(0));
  if (!given(weight)) return;
  guard.count(*weight, "weight", x.size(1));
  guard.real(*weight, "weight");
}

std::tuple<Tensor, Tensor, Tensor> cross_entropy(const Tensor& x, const Tensor& target, const MaybeTensor& weight,
                                                 bool smooth) {
  const Guard guard("cross_entropy");
  guard.rank(x, "x", 2);
  check_classes(guard, x, target, weight);
  const Rows from(x, 1);
  const Tensor classes = target.contiguous(), weights = given(weight) ? as_float(*weight) : Tensor();
  const Tensor log_prob = at::empty(x.sizes(), x.options());
  const Rows results(log_prob, 1);
  Tensor picked = at::empty({x.size(0)}, x.options().dtype(at::kFloat)), weighted = at::empty_like(picked);
  float *chosen = picked.data_ptr<float>(), *sums = weighted.data_ptr<float>();
  const int64_t* index = classes.const_data_ptr<int64_t>();
  const int64_t n = from.width;
  typed(x, "cross_entropy", [&](auto type) {
    using T = decltype(type);
    parallel_rows(from.count, n, [&](int64_t begin, int64_t end) {
      Cursor v(from, begin), to(results, begin);
      for (int64_t r = begin; r < end; ++r, v.next(), to.next()) {
        guard.index(index[r], n, "target");
        const Normalizer by = normalizer(v.row<T>(), n);
        chosen[r] = static_cast<float>(v.row<T>()[index[r]]) - by.top - by.log_sum;
        sums[r] = log_probabilities(v.row<T>(), n, by, data_or_null(weights), smooth, to.row<T>());
      }
    });
  });
  return {log_prob, picked, weighted};
}

template <class T>
SOFTNPU_WALK void gradient(const T* log_prob, int64_t n, float total, float spread, const float* weight, T* dx) {
  const Vec h(total), s(spread);
  sweep(n, [&](int64_t i, auto c) {
    Vec d = exp(read(log_prob + i, c)) * h;
    if (spread != 0) d = d - (weight == nullptr ? s : s * read(weight + i, c));
    write(dx + i, d, c);
  });
}

Tensor cross_entropy_backward(const Tensor& log_prob, const Tensor& target, const Tensor& at_target,
                              const MaybeTensor& spread, const MaybeTensor& weight) {
  const Guard guard("cross_entropy_backward");
  guard.rank(log_prob, "log_prob", 2);
  check_classes(guard, log_prob, target, weight);
  guard.count(at_target, "at_target", log_prob.size(0));
  guard.real(at_target, "at_target");
  if (given(spread)) {
    guard.count(*spread, "spread", log_prob.size(0));
    guard.real(*spread, "spread");
  }
  const Rows from(log_prob, 1);
  const Tensor classes = target.contiguous(), peaks = as_float(at_target);
  const Tensor spreads = given(spread) ? as_float(*spread) : Tensor();
  const Tensor weights = given(weight) ? as_float(*weight) : Tensor();
  Result dx(log_prob, 1);
  const int64_t n = from.width;
  double mass = static_cast<double>(n);
  if (weights.defined()) {
    const float* w = weights.const_data_ptr<float>();
    mass = row_sum(n, [&](int64_t i, auto c) { return read(w + i, c); });
  }
  typed(log_prob, "cross_entropy_backward", [&](auto type) {
    using T = decltype(type);
    parallel_rows(from.count, n, [&](int64_t begin, int64_t end) {
      Cursor v(from, begin), to(dx.rows, begin);
      for (int64_t r = begin; r < end; ++r, v.next(), to.next()) {
        const float peak = peaks.const_data_ptr<float>()[r];
        const float each = spreads.defined() ? spreads.const_data_ptr<float>()[r] : 0.0f;
        const int64_t c = classes.const_data_ptr<int64_t>()[r];
        guard.index(c, n, "target");
        const float total = peak + each * static_cast<float>(mass);
        gradient(v.row<T>(), n, total, each, data_or_null(weights), to.row<T>());
        const float own = std::exp(static_cast<float>(v.row<T>()[c])) * total;
        const float share = each == 0 ? 0.0f : weights.defined() ? each * weights.const_data_ptr<float>()[c] : each;
        to.row<T>()[c] = static_cast<T>(own - (share + peak));
      }
    });
  });
  return dx.tensor();
}

}  // namespace
}  // namespace softnpu::kernels::inline CPU_CAPABILITY

SOFTNPU_SCHEMAS(m) {
  m.def("cross_entropy(Tensor x, Tensor target, Tensor? weight, bool smooth) -> (Tensor, Tensor, Tensor)");
  m.def(
      "cross_entropy_backward(Tensor log_prob, Tensor target, Tensor at_target, Tensor? spread, Tensor? weight) "
      "-> Tensor");
}

SOFTNPU_KERNELS(cross_entropy, m) {
  m.impl("cross_entropy", softnpu::kernels::cross_entropy);
  m.impl("cross_entropy_backward", softnpu::kernels::cross_entropy_backward);
}
