// The updates of the fused optimizers that treat each element by itself: one pass over parameters, states and gradient.
//
//   softnpu::fused_adam(Tensor(a!) param, Tensor(b!) m, Tensor(c!) v, Tensor(d!)? largest, Tensor grad, float beta1,
//       float beta2, float rate, float root, float eps, float penalty, float shrink) -> ()
//   softnpu::fused_sgd(Tensor(a!) param, Tensor(b!)? buffer, Tensor grad, float rate, float momentum, float dampening,
//       float penalty, bool nesterov, bool first) -> ()
//   softnpu::fused_rmsprop(Tensor(a!) param, Tensor(b!) square, Tensor(c!)? buffer, Tensor(d!)? mean, Tensor grad,
//       float rate, float alpha, float eps, float momentum, float penalty, float shrink, bool inside,
//       bool rate_first) -> ()
//   softnpu::fused_adadelta(Tensor(a!) param, Tensor(b!) square, Tensor(c!) delta, Tensor grad, float rate, float rho,
//       float eps, float penalty) -> ()
//
// fp32, bf16 or fp16, all tensors alike; arithmetic in fp32. penalty: the weight of the parameters in the gradient;
// shrink: what multiplies the parameters before the step; root: of 1 - beta2^t; inside: eps is added under the root;
// rate_first: the buffer keeps steps that the rate has scaled.
#include "averages.h"
#include "elementwise.h"

namespace softnpu::kernels::inline CPU_CAPABILITY {
namespace {

using at::Tensor;
using at::vec::fmadd;

void fused_adam(const Tensor& param, const Tensor& m, const Tensor& v, const MaybeTensor& largest, const Tensor& grad,
                double beta1, double beta2, double rate, double root, double eps, double penalty, double shrink) {
  const Averages moments(beta1, beta2);
  const Vec step = vec(rate), inverse = vec(1 / root), tiny = vec(eps), weight = vec(penalty), kept = vec(shrink);
  const auto moved = [&](const Vec& p, const Vec& first, const Vec& second) {
    return p * kept - step * first / fmadd(second.sqrt(), inverse, tiny);
  };
  if (given(largest)) {
    update<4, 5>("fused_adam", {{"param", param}, {"m", m}, {"v", v}, {"largest", *largest}, {"grad", grad}},
                 [&](const auto& x) {
                   const Vec g = fmadd(weight, x[0], x[4]), first = moments.first(x[1], g),
                             second = moments.second(x[2], g);
                   const Vec top = at::vec::maximum(x[3], second);
                   return std::array<Vec, 4>{moved(x[0], first, top), first, second, top};
                 });
  } else {
    update<3, 4>("fused_adam", {{"param", param}, {"m", m}, {"v", v}, {"grad", grad}}, [&](const auto& x) {
      const Vec g = fmadd(weight, x[0], x[3]), first = moments.first(x[1], g), second = moments.second(x[2], g);
      return std::array<Vec, 3>{moved(x[0], first, second), first, second};
    });
  }
}

void fused_sgd(const Tensor& param, const MaybeTensor& buffer, const Tensor& grad, double rate, double momentum,
               double dampening, double penalty, bool nesterov, bool first) {
  const Vec step = vec(-rate), kept = vec(momentum), fresh = vec(1 - dampening), weight = vec(penalty);
  if (!given(buffer)) {
    update<1, 2>("fused_sgd", {{"param", param}, {"grad", grad}},
                 [&](const auto& x) { return std::array<Vec, 1>{fmadd(step, fmadd(weight, x[0], x[1]), x[0])}; });
    return;
  }
  update<2, 3>("fused_sgd", {{"param", param}, {"buffer", *buffer}, {"grad", grad}}, [&](const auto& x) {
    const Vec g = fmadd(weight, x[0], x[2]), along = first ? g : fmadd(kept, x[1], fresh * g);
    return std::array<Vec, 2>{fmadd(step, nesterov ? fmadd(kept, along, g) : along, x[0]), along};
  });
}

struct RmsProp {
  Vec step, keep, fresh, tiny, kept, weight, shrink;
  bool inside, rate_first;

  SOFTNPU_INLINE Vec root(const Vec& square) const { return inside ? (square + tiny).sqrt() : square.sqrt() + tiny; }
  // Where the parameters go, without and with momentum.
  SOFTNPU_INLINE Vec moved(const Vec& p, const Vec& g, const Vec& divisor) const {
    return p * shrink - step * g / divisor;
  }
  SOFTNPU_INLINE std::array<Vec, 2> moved(const Vec& p, const Vec& g, const Vec& divisor, const Vec& buffer) const {
    const Vec along = fmadd(kept, buffer, (rate_first ? step * g : g) / divisor);
    return {p * shrink - (rate_first ? along : step * along), along};
  }
};

void fused_rmsprop(const Tensor& param, const Tensor& square, const MaybeTensor& buffer, const MaybeTensor& mean,
                   const Tensor& grad, double rate, double alpha, double eps, double momentum, double penalty,
                   double shrink, bool inside, bool rate_first) {
  const RmsProp rule{vec(rate),    vec(alpha),  vec(1 - alpha), vec(eps),  vec(momentum),
                     vec(penalty), vec(shrink), inside,         rate_first};
  const auto plain = [&](const Vec& p, const Vec& square, const Vec& grad) {
    const Vec g = fmadd(rule.weight, p, grad);
    return std::array<Vec, 2>{g, fmadd(rule.keep, square, rule.fresh * g * g)};
  };
  const auto centered = [&](const Vec& mean, const Vec& g) { return fmadd(rule.fresh, g - mean, mean); };
  const char* name = "fused_rmsprop";
  if (given(buffer) && given(mean)) {
    update<4, 5>(name, {{"param", param}, {"square", square}, {"buffer", *buffer}, {"mean", *mean}, {"grad", grad}},
                 [&](const auto& x) {
                   const auto [g, s] = plain(x[0], x[1], x[4]);
                   const Vec c = centered(x[3], g);
                   const auto [p, along] = rule.moved(x[0], g, rule.root(s - c * c), x[2]);
                   return std::array<Vec, 4>{p, s, along, c};
                 });
  } else if (given(buffer)) {
    update<3, 4>(name, {{"param", param}, {"square", square}, {"buffer", *buffer}, {"grad", grad}}, [&](const auto& x) {
      const auto [g, s] = plain(x[0], x[1], x[3]);
      const auto [p, along] = rule.moved(x[0], g, rule.root(s), x[2]);
      return std::array<Vec, 3>{p, s, along};
    });
  } else if (given(mean)) {
    update<3, 4>(name, {{"param", param}, {"square", square}, {"mean", *mean}, {"grad", grad}}, [&](const auto& x) {
      const auto [g, s] = plain(x[0], x[1], x[3]);
      const Vec c = centered(x[2], g);
      return std::array<Vec, 3>{rule.moved(x[0], g, rule.root(s - c * c)), s, c};
    });
  } else {
    update<2, 3>(name, {{"param", param}, {"square", square}, {"grad", grad}}, [&](const auto& x) {
      const auto [g, s] = plain(x[0], x[1], x[2]);
      return std::array<Vec, 2>{rule.moved(x[0], g, rule.root(s)), s};
    });
  }
}

void fused_adadelta(const Tensor& param, const Tensor& square, const Tensor& delta, const Tensor& grad, double rate,
                    double rho, double eps, double penalty) {
  const Vec step = vec(-rate), keep = vec(rho), fresh = vec(1 - rho), tiny = vec(eps), weight = vec(penalty);
  update<3, 4>("fused_adadelta", {{"param", param}, {"square", square}, {"delta", delta}, {"grad", grad}},
               [&](const auto& x) {
                 const Vec g = fmadd(weight, x[0], x[3]), s = fmadd(keep, x[1], fresh * g * g);
                 const Vec along = (x[2] + tiny).sqrt() / (s + tiny).sqrt() * g;
                 return std::array<Vec, 3>{fmadd(step, along, x[0]), s, fmadd(keep, x[2], fresh * along * along)};
               });
}

}  // namespace
}  // namespace softnpu::kernels::inline CPU_CAPABILITY

SOFTNPU_SCHEMAS(m) {
  m.def(
      "fused_adam(Tensor(a!) param, Tensor(b!) m, Tensor(c!) v, Tensor(d!)? largest, Tensor grad, float beta1, "
      "float beta2, float rate, float root, float eps, float penalty, float shrink) -> ()");
  m.def(
      "fused_sgd(Tensor(a!) param, Tensor(b!)? buffer, Tensor grad, float rate, float momentum, float dampening, "
      "float penalty, bool nesterov, bool first) -> ()");
  m.def(
      "fused_rmsprop(Tensor(a!) param, Tensor(b!) square, Tensor(c!)? buffer, Tensor(d!)? mean, Tensor grad, "
      "float rate, float alpha, float eps, float momentum, float penalty, float shrink, bool inside, "
      "bool rate_first) -> ()");
  m.def(
      "fused_adadelta(Tensor(a!) param, Tensor(b!) square, Tensor(c!) delta, Tensor grad, float rate, float rho, "
      "float eps, float penalty) -> ()");
}

SOFTNPU_KERNELS(optimizers, m) {
  using namespace softnpu::kernels;
  m.impl("fused_adam", fused_adam);
  m.impl("fused_sgd", fused_sgd);
  m.impl("fused_rmsprop", fused_rmsprop);
  m.impl("fused_adadelta", fused_adadelta);
}
