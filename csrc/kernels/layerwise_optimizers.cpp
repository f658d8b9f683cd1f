// The updates of the fused optimizers that look at norms: of all gradients, or of each parameter.
//
//   softnpu::fused_bert_adam(Tensor(a!) param, Tensor(b!) m, Tensor(c!) v, Tensor(d!) grad, float beta1, float beta2,
//       float rate, float eps, float decay, float most) -> ()
//   softnpu::fused_lamb(Tensor(a!) param, Tensor(b!) m, Tensor(c!) v, Tensor grad, Tensor? norm, int[] sizes,
//       float beta1, float beta2, float rate, float eps, float decay, float most) -> ()
//   softnpu::fused_adamp(Tensor(a!) param, Tensor(b!) m, Tensor(c!) v, Tensor grad, int[] sizes, int[] rows,
//       float beta1, float beta2, float rate, float root, float eps, float decay, float delta, float ratio,
//       bool nesterov) -> ()
//
// fp32, bf16 or fp16, all tensors alike, flat; arithmetic in fp32, norms in fp32 blocks that are summed in double.
// sizes: how many elements each parameter has. bert_adam clips the gradient, in place, to the norm `most` (0: not).
// lamb divides the gradient by `norm` where that exceeds 1; norms of parameters count up to `most` (0: no ratios).
// adamp: rows of each parameter, 0 where it is no weight; root: of 1 - beta2^t.
#include <array>
#include <cmath>

#include "averages.h"
#include "elementwise.h"

namespace softnpu::kernels::inline CPU_CAPABILITY {
namespace {

using at::Tensor;
using at::vec::fmadd;

constexpr int64_t kSummed = 4096;  // elements whose sums are kept in fp32

// The flat tensors of a step.
template <class T>
struct Flat {
  T *param, *m, *v;
  const T* grad;

  Flat from(int64_t i) const { return {param + i, m + i, v + i, grad + i}; }
};

// The tensors are contiguous and alike, and hold parameters of these sizes.
void check_flat(const Guard& guard, const Tensor& param, const Tensor& m, const Tensor& v, const Tensor& grad,
                at::IntArrayRef sizes) {
  const Named tensors[] = {{"param", param}, {"m", m}, {"v", v}, {"grad", grad}};
  for (const auto& [name, t] : tensors) {
    guard.tensor(t, name);
    guard.hold(t.is_contiguous(), name, "a contiguous tensor", t.strides());
    guard.count(t, name, param.numel());
    guard.same_dtype(t, name, param);
  }
  int64_t total = 0;
  for (const int64_t size : sizes) {
    guard.hold(size >= 0, "sizes", "no negative numbers", sizes);
    total = guard.sum(total, size, "sizes");
  }
  guard.hold(total <= param.numel(), "sizes", c10::str("at most ", param.numel(), " elements together"), total);
}

template <class T>
Flat<T> flat(const Tensor& param, const Tensor& m, const Tensor& v, const Tensor& grad) {
  return {param.data_ptr<T>(), m.data_ptr<T>(), v.data_ptr<T>(), grad.const_data_ptr<T>()};
}

// Rows of n elements, cut into blocks that do not cross rows.
struct Blocks {
  Blocks(int64_t rows, int64_t n) : rows(rows), n(n), each((n + kSummed - 1) / kSummed) {}

  // body(block, row, place, count) for every block, in threads where it pays.
  template <class Body>
  void run(const Body& body) const {
    parallel_rows(rows * each, std::min(n, kSummed), [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        const int64_t row = b / each, start = b % each * kSummed;
        body(b, row, row * n + start, std::min(kSummed, n - start));
      }
    });
  }

  int64_t rows, n, each;
};

// --- BertAdam -----------------------------------------------------------------------------------------------------

template <class T>
SOFTNPU_WALK float square_sum(const T* x, int64_t n) {
  return row_sum(n, [&](int64_t i, auto c) {
    const Vec v = read(x + i, c);
    return v * v;
  });
}

double norm_of(const Tensor& t) {
  const Tensor x = t.contiguous();
  const Blocks blocks(1, x.numel());
  std::vector<float> sums(blocks.each);
  typed(x, "fused_bert_adam", [&](auto type) {
    const auto* from = x.const_data_ptr<decltype(type)>();
    blocks.run([&](int64_t b, int64_t, int64_t at, int64_t count) { sums[b] = square_sum(from + at, count); });
  });
  double total = 0;
  for (const float s : sums) total += s;
  return std::sqrt(total);
}

void fused_bert_adam(const Tensor& param, const Tensor& m, const Tensor& v, const Tensor& grad, double beta1,
                     double beta2, double rate, double eps, double decay, double most) {
  const Guard guard("fused_bert_adam");
  guard.tensor(grad, "grad");
  const double factor = most > 0 ? most / (norm_of(grad) + 1e-6) : 1.0;
  const bool clips = !(factor >= 1.0);  // NaN does
  const Averages moments(beta1, beta2);
  const Vec scale = vec(factor), step = vec(-rate), tiny = vec(eps), weight = vec(decay);
  const auto moved = [&](const Vec& p, const Vec& first, const Vec& second) {
    return fmadd(step, fmadd(weight, p, first / (second.sqrt() + tiny)), p);
  };
  if (clips) {
    update<4, 4>("fused_bert_adam", {{"param", param}, {"m", m}, {"v", v}, {"grad", grad}}, [&](const auto& x) {
      const Vec g = x[3] * scale, first = moments.first(x[1], g), second = moments.second(x[2], g);
      return std::array<Vec, 4>{moved(x[0], first, second), first, second, g};
    });
  } else {
    update<3, 4>("fused_bert_adam", {{"param", param}, {"m", m}, {"v", v}, {"grad", grad}}, [&](const auto& x) {
      const Vec first = moments.first(x[1], x[3]), second = moments.second(x[2], x[3]);
      return std::array<Vec, 3>{moved(x[0], first, second), first, second};
    });
  }
}

// --- Lamb ---------------------------------------------------------------------------------------------------------

struct Lamb {
  Averages moments;
  Vec scale, tiny, weight;

  SOFTNPU_INLINE Vec change(const Vec& p, const Vec& first, const Vec& second) const {
    return fmadd(weight, p, first / (second.sqrt() + tiny));
  }
};

// The moments of a block; returns the sums of squares of the parameters and of their changes.
template <class T>
SOFTNPU_WALK std::array<float, 2> advance(const Flat<T>& at, int64_t n, const Lamb& rule) {
  const Lamb r = rule;
  Vec weights(0.0f), changes(0.0f);
  sweep(n, [&](int64_t i, auto c) {
    const Vec g = read(at.grad + i, c) * r.scale, p = read(at.param + i, c);
    const Vec first_moment = r.moments.first(read(at.m + i, c), g);
    const Vec second_moment = r.moments.second(read(at.v + i, c), g);
    write(at.m + i, first_moment, c);
    write(at.v + i, second_moment, c);
    const Vec change = first(r.change(p, first_moment, second_moment), c, Vec(0.0f));
    weights = fmadd(p, p, weights);
    changes = fmadd(change, change, changes);
  });
  return {sum(weights), sum(changes)};
}

template <class T>
SOFTNPU_WALK void follow(const Flat<T>& at, int64_t n, const Lamb& rule, float rate) {
  const Lamb r = rule;
  const Vec step(-rate);
  sweep(n, [&](int64_t i, auto c) {
    const Vec p = read(at.param + i, c);
    write(at.param + i, fmadd(step, r.change(p, read(at.m + i, c), read(at.v + i, c)), p), c);
  });
}

void fused_lamb(const Tensor& param, const Tensor& m, const Tensor& v, const Tensor& grad, const MaybeTensor& norm,
                at::IntArrayRef sizes, double beta1, double beta2, double rate, double eps, double decay, double most) {
  const Guard guard("fused_lamb");
  check_flat(guard, param, m, v, grad, sizes);
  if (given(norm)) guard.count(*norm, "norm", 1);
  const double divisor = given(norm) ? std::max(1.0, norm->item().toDouble()) : 1.0;
  const Lamb rule{Averages(beta1, beta2), vec(1 / divisor), vec(eps), vec(decay)};
  if (most == 0) {
    const Vec step = vec(-rate);
    update<3, 4>("fused_lamb", {{"param", param}, {"m", m}, {"v", v}, {"grad", grad}}, [&](const auto& x) {
      const Vec g = x[3] * rule.scale, one = rule.moments.first(x[1], g), two = rule.moments.second(x[2], g);
      return std::array<Vec, 3>{fmadd(step, rule.change(x[0], one, two), x[0]), one, two};
    });
    return;
  }
  typed(param, "fused_lamb", [&](auto type) {
    Flat<decltype(type)> all = flat<decltype(type)>(param, m, v, grad);
    for (const int64_t size : sizes) {  // one by one, so that the second pass finds the first one's bytes in the cache
      const Blocks blocks(1, size);
      std::vector<std::array<float, 2>> sums(blocks.each);
      blocks.run([&](int64_t b, int64_t, int64_t at, int64_t count) { sums[b] = advance(all.from(at), count, rule); });
      double weights = 0, changes = 0;
      for (const auto& [w, c] : sums) {
        weights += w;
        changes += c;
      }
      const bool none = weights == 0 || changes == 0;
      const double ratio = none ? 1.0 : std::min(std::sqrt(weights), most) / std::sqrt(changes);
      const float step = static_cast<float>(rate * ratio);
      blocks.run([&](int64_t, int64_t, int64_t at, int64_t count) { follow(all.from(at), count, rule, step); });
      all = all.from(size);
    }
  });
}

// --- AdamP --------------------------------------------------------------------------------------------------------

struct AdamP {
  Averages moments;
  Vec inverse, tiny;
  bool nesterov;
};

// Sums over a row: of the squares of weights and gradients, of their product, of weights times changes.
struct Angles {
  double weights = 0, grads = 0, both = 0, change = 0;

  void add(const std::array<float, 4>& sums) {
    weights += sums[0];
    grads += sums[1];
    both += sums[2];
    change += sums[3];
  }
  double norm(double eps) const { return std::sqrt(weights) + eps; }
  bool orthogonal(double eps, double bound) const {
    return std::abs(both) / (std::sqrt(grads) + eps) / norm(eps) < bound;
  }
  // What of the weights is to be taken out of the change.
  float part(double eps) const { return static_cast<float>(change / (norm(eps) * norm(eps))); }
};

template <class T>
SOFTNPU_WALK std::array<float, 4> advance(const Flat<T>& at, int64_t n, const AdamP& rule, float* change) {
  const AdamP r = rule;
  Vec sums[4] = {Vec(0.0f), Vec(0.0f), Vec(0.0f), Vec(0.0f)};
  sweep(n, [&](int64_t i, auto c) {
    const Vec g = read(at.grad + i, c), p = read(at.param + i, c);
    const Vec one = r.moments.first(read(at.m + i, c), g), two = r.moments.second(read(at.v + i, c), g);
    write(at.m + i, one, c);
    write(at.v + i, two, c);
    const Vec ahead = r.nesterov ? fmadd(r.moments.keep1, one, r.moments.fresh1 * g) : one;
    const Vec d = first(ahead / fmadd(two.sqrt(), r.inverse, r.tiny), c, Vec(0.0f));
    write(change + i, d, c);
    sums[0] = fmadd(p, p, sums[0]);
    sums[1] = fmadd(g, g, sums[1]);
    sums[2] = fmadd(p, g, sums[2]);
    sums[3] = fmadd(p, d, sums[3]);
  });
  return {sum(sums[0]), sum(sums[1]), sum(sums[2]), sum(sums[3])};
}

template <class T>
SOFTNPU_WALK void follow(T* param, const float* change, int64_t n, float shrink, float rate, float part) {
  const Vec kept(shrink), step(-rate), along(-part);
  sweep(n, [&](int64_t i, auto c) {
    const Vec p = read(param + i, c);
    write(param + i, fmadd(step, fmadd(along, p, read(change + i, c)), p * kept), c);
  });
}

void fused_adamp(const Tensor& param, const Tensor& m, const Tensor& v, const Tensor& grad, at::IntArrayRef sizes,
                 at::IntArrayRef rows, double beta1, double beta2, double rate, double root, double eps, double decay,
                 double delta, double ratio, bool nesterov) {
  const Guard guard("fused_adamp");
  check_flat(guard, param, m, v, grad, sizes);
  guard.hold(rows.size() == sizes.size(), "rows", c10::str(sizes.size(), " numbers, as 'sizes' has"), rows);
  for (size_t k = 0; k < sizes.size(); ++k) {
    guard.hold(rows[k] >= 0 && (rows[k] == 0 || sizes[k] % rows[k] == 0), "rows", c10::str("divisors of ", sizes),
               rows);
  }
  const AdamP rule{Averages(beta1, beta2), vec(1 / root), vec(eps), nesterov};
  const int64_t largest = sizes.empty() ? 0 : *std::max_element(sizes.begin(), sizes.end());
  Tensor change = at::empty({largest}, param.options().dtype(at::kFloat));
  float* changes = change.data_ptr<float>();
  typed(param, "fused_adamp", [&](auto type) {
    Flat<decltype(type)> all = flat<decltype(type)>(param, m, v, grad);
    for (size_t k = 0; k < sizes.size(); ++k) {
      const int64_t size = sizes[k], channels = std::max<int64_t>(1, rows[k]), n = size / channels;
      const Blocks blocks(channels, n);
      std::vector<std::array<float, 4>> sums(channels * blocks.each);
      blocks.run([&](int64_t b, int64_t, int64_t at, int64_t count) {
        sums[b] = advance(all.from(at), count, rule, changes + at);
      });
      std::vector<Angles> each(channels);
      Angles whole;
      bool by_channel = rows[k] > 0;
      for (int64_t row = 0; row < channels; ++row) {
        for (int64_t b = row * blocks.each; b < (row + 1) * blocks.each; ++b) {
          each[row].add(sums[b]);
          whole.add(sums[b]);
        }
        by_channel = by_channel && each[row].orthogonal(eps, delta / std::sqrt(n));
      }
      const bool projects = by_channel || (rows[k] > 0 && whole.orthogonal(eps, delta / std::sqrt(size)));
      const auto shrink = static_cast<float>(1 - decay * (projects ? ratio : 1.0));
      blocks.run([&](int64_t, int64_t row, int64_t at, int64_t count) {
        const float part = projects ? (by_channel ? each[row] : whole).part(eps) : 0.0f;
        follow(all.param + at, changes + at, count, shrink, static_cast<float>(rate), part);
      });
      all = all.from(size);
    }
  });
}

}  // namespace
}  // namespace softnpu::kernels::inline CPU_CAPABILITY

SOFTNPU_SCHEMAS(m) {
  m.def(
      "fused_bert_adam(Tensor(a!) param, Tensor(b!) m, Tensor(c!) v, Tensor(d!) grad, float beta1, float beta2, "
      "float rate, float eps, float decay, float most) -> ()");
  m.def(
      "fused_lamb(Tensor(a!) param, Tensor(b!) m, Tensor(c!) v, Tensor grad, Tensor? norm, int[] sizes, float beta1, "
      "float beta2, float rate, float eps, float decay, float most) -> ()");
  m.def(
      "fused_adamp(Tensor(a!) param, Tensor(b!) m, Tensor(c!) v, Tensor grad, int[] sizes, int[] rows, float beta1, "
      "float beta2, float rate, float root, float eps, float decay, float delta, float ratio, bool nesterov) -> ()");
}

SOFTNPU_KERNELS(layerwise_optimizers, m) {
  using namespace softnpu::kernels;
  m.impl("fused_bert_adam", fused_bert_adam);
  m.impl("fused_lamb", fused_lamb);
  m.impl("fused_adamp", fused_adamp);
}
