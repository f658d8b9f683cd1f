// What optimizers share: numbers as vectors, and Adam's running averages of the gradient and of its square.
#pragma once

#include "vec.h"

namespace softnpu::kernels::inline CPU_CAPABILITY {

SOFTNPU_INLINE Vec vec(double value) { return Vec(static_cast<float>(value)); }

struct Averages {
  Averages(double beta1, double beta2)
      : keep1(static_cast<float>(beta1)),
        fresh1(static_cast<float>(1 - beta1)),
        keep2(static_cast<float>(beta2)),
        fresh2(static_cast<float>(1 - beta2)) {}

  SOFTNPU_INLINE Vec first(const Vec& m, const Vec& g) const { return at::vec::fmadd(keep1, m, fresh1 * g); }
  SOFTNPU_INLINE Vec second(const Vec& v, const Vec& g) const { return at::vec::fmadd(keep2, v, fresh2 * g * g); }

  Vec keep1, fresh1, keep2, fresh2;
};

}  // namespace softnpu::kernels::inline CPU_CAPABILITY
