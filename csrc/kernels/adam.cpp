// npu_apply_adam and npu_apply_adam_w: one pass over variable, moments and gradient, in place.
//
//   softnpu::apply_adam(Tensor(a!) var, Tensor(b!) m, Tensor(c!) v, Tensor grad, float beta1, float beta2, float rate,
//       float epsilon, bool nesterov) -> ()
//   softnpu::apply_adam_w(Tensor(a!) var, Tensor(b!) m, Tensor(c!) v, Tensor grad, Tensor? largest, float beta1,
//       float beta2, float rate, float decay, float correction, float epsilon, bool maximize) -> ()
//
// rate is the learning rate with its bias correction; decay multiplies the variable; correction is 1 - beta2^t.
#include "elementwise.h"

namespace softnpu::kernels::inline CPU_CAPABILITY {
namespace {

using at::Tensor;
using at::vec::fmadd;

void apply_adam(const Tensor& var, const Tensor& m, const Tensor& v, const Tensor& grad, double beta1, double beta2,
                double rate, double epsilon, bool nesterov) {
  const Vec decay(static_cast<float>(beta1)), first(static_cast<float>(1 - beta1)), rest(static_cast<float>(rate));
  const Vec second(static_cast<float>(1 - beta2)), tiny(static_cast<float>(epsilon));
  update<3, 4>("apply_adam", {{"var", var}, {"m", m}, {"v", v}, {"grad", grad}}, [&](const auto& x) {
    const Vec g = x[3], moment = fmadd(first, g - x[1], x[1]), square = fmadd(second, g * g - x[2], x[2]);
    const Vec ahead = nesterov ? fmadd(decay, moment, first * g) : moment;
    return std::array<Vec, 3>{x[0] - rest * ahead / (square.sqrt() + tiny), moment, square};
  });
}

void apply_adam_w(const Tensor& var, const Tensor& m, const Tensor& v, const Tensor& grad, const MaybeTensor& largest,
                  double beta1, double beta2, double rate, double decay, double correction, double epsilon,
                  bool maximize) {
  const float sign = maximize ? -1.0f : 1.0f;
  const Vec keep1(static_cast<float>(beta1)), first(sign * static_cast<float>(1 - beta1));
  const Vec keep2(static_cast<float>(beta2)), second(static_cast<float>(1 - beta2));
  const Vec eta(static_cast<float>(rate)), shrink(static_cast<float>(decay)), tiny(static_cast<float>(epsilon));
  const Vec divisor(static_cast<float>(correction));
  const auto stepped = [&](const auto& x, const auto& bound) {
    const Vec moment = fmadd(keep1, x[1], first * x[3]), square = fmadd(keep2, x[2], second * x[3] * x[3]);
    const Vec root = (bound(square) / divisor).sqrt() + tiny;
    return std::array<Vec, 3>{x[0] * shrink - eta * moment / root, moment, square};
  };
  if (given(largest)) {
    update<3, 5>(
        "apply_adam_w", {{"var", var}, {"m", m}, {"v", v}, {"grad", grad}, {"largest", *largest}},
        [&](const auto& x) { return stepped(x, [&](const Vec& square) { return at::vec::maximum(x[4], square); }); });
  } else {
    update<3, 4>("apply_adam_w", {{"var", var}, {"m", m}, {"v", v}, {"grad", grad}},
                 [&](const auto& x) { return stepped(x, [](const Vec& square) { return square; }); });
  }
}

}  // namespace
}  // namespace softnpu::kernels::inline CPU_CAPABILITY

SOFTNPU_SCHEMAS(m) {
  m.def(
      "apply_adam(Tensor(a!) var, Tensor(b!) m, Tensor(c!) v, Tensor grad, float beta1, float beta2, float rate, "
      "float epsilon, bool nesterov) -> ()");
  m.def(
      "apply_adam_w(Tensor(a!) var, Tensor(b!) m, Tensor(c!) v, Tensor grad, Tensor? largest, float beta1, "
      "float beta2, float rate, float decay, float correction, float epsilon, bool maximize) -> ()");
}

SOFTNPU_KERNELS(adam, m) {
  m.impl("apply_adam", softnpu::kernels::apply_adam);
  m.impl("apply_adam_w", softnpu::kernels::apply_adam_w);
}
