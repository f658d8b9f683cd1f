// The activations and their gradients: GELU (erf and tanh), fast GELU, SiLU, Mish; and the gated units.
//
//   softnpu::gelu(Tensor x, bool tanh) -> Tensor               softnpu::gelu_backward(Tensor dy, Tensor x, bool tanh)
//   softnpu::swish(Tensor x, float scale, *, Tensor(a!)? out)  softnpu::swish_backward(Tensor dy, Tensor x, float
//   scale) softnpu::silu_backward(Tensor dy, Tensor x, Tensor y) softnpu::mish(Tensor x) softnpu::mish_backward(Tensor
//   dy, Tensor x) softnpu::swiglu(Tensor x, int dim)                         softnpu::swiglu_backward(Tensor dy, Tensor
//   x, int dim) softnpu::gelu_mul(Tensor x, bool tanh)
//
// All operands of a call have one type: fp32, bf16 or fp16.
#include <cmath>

#include "elementwise.h"

namespace softnpu::kernels::inline CPU_CAPABILITY {
namespace {

using at::Tensor;
using at::vec::fmadd;

// --- the formulas -------------------------------------------------------------------------------------------------

constexpr float kTanhSlope = 0.7978845608028654f, kTanhCube = 0.044715f;  // sqrt(2 / pi)
constexpr float kDensity = 0.3989422804014327f;                           // 1 / sqrt(2 pi)

// The normal distribution function as sigmoid(x R(x^2)): R is a fit of its logit, good to the last place or two of
// fp32 in absolute terms, and better than 1 + erf on the left, where that cancels.
SOFTNPU_INLINE Vec normal_cdf(const Vec& x) {
  const Vec u = at::vec::clamp_max(x * x, Vec(30.25f));
  const Vec square = u * u;  // in pairs, so that the chain of operations is short
  const Vec low = fmadd(Vec(7.2666169153e-2f), u, Vec(1.5957698829f));
  const Vec middle = fmadd(Vec(-1.1061238409e-4f), u, Vec(-6.5189958109e-5f));
  const Vec high = fmadd(Vec(-2.6452661883e-7f), u, Vec(7.9294881510e-6f));
  const Vec r = fmadd(fmadd(fmadd(Vec(3.5123396397e-9f), square, high), square, middle), square, low);
  return sigmoid(r * x);
}

SOFTNPU_INLINE Vec gelu_erf(const Vec& x) { return x * normal_cdf(x); }

SOFTNPU_INLINE Vec gelu_erf_slope(const Vec& x) {
  return fmadd(x * Vec(kDensity), exp(x * x * Vec(-0.5f)), normal_cdf(x));
}

// (1 + tanh(u)) / 2 = sigmoid(2 u)
SOFTNPU_INLINE Vec gelu_tanh(const Vec& x) {
  const Vec cubic = fmadd(Vec(2 * kTanhSlope * kTanhCube) * x, x, Vec(2 * kTanhSlope));
  return x * sigmoid(cubic * x);
}

SOFTNPU_INLINE Vec gelu_tanh_slope(const Vec& x) {
  const Vec squares = x * x;
  const Gate g = gate(fmadd(Vec(2 * kTanhSlope * kTanhCube), squares, Vec(2 * kTanhSlope)) * x);
  const Vec inner = fmadd(Vec(6 * kTanhSlope * kTanhCube), squares, Vec(2 * kTanhSlope));
  return fmadd(g.open * g.shut * inner, x, g.open);
}

// tanh(ln(1 + e^x)) = n / (n + 2) with n = e^x (e^x + 2)
SOFTNPU_INLINE Vec tanh_softplus(const Vec& x) {
  const Vec e = exp(at::vec::clamp_max(x, Vec(20.0f)));
  const Vec n = e * (e + Vec(2.0f));
  return n / (n + Vec(2.0f));
}

SOFTNPU_INLINE Vec mish_slope(const Vec& x) {
  const Vec t = tanh_softplus(x);
  return fmadd(x * sigmoid(x), Vec(1.0f) - t * t, t);
}

// --- one element at a time ----------------------------------------------------------------------------------------

Tensor gelu(const Tensor& x, bool tanh) {
  if (tanh) return map<1>("gelu", {{"x", x}}, [](const auto& v) { return gelu_tanh(v[0]); });
  return map<1>("gelu", {{"x", x}}, [](const auto& v) { return gelu_erf(v[0]); });
}

Tensor gelu_backward(const Tensor& dy, const Tensor& x, bool tanh) {
  if (tanh)
    return map<2>("gelu_backward", {{"dy", dy}, {"x", x}}, [](const auto& v) { return v[0] * gelu_tanh_slope(v[1]); });
  return map<2>("gelu_backward", {{"dy", dy}, {"x", x}}, [](const auto& v) { return v[0] * gelu_erf_slope(v[1]); });
}

Tensor swish_forward(const Tensor& x, double scale, const MaybeTensor& out) {
  const Vec s(static_cast<float>(scale));
  return map<1>("swish", {{"x", x}}, [s](const auto& v) { return swish(v[0], s); }, out.value_or(Tensor()));
}

Tensor swish_backward(const Tensor& dy, const Tensor& x, double scale) {
  const Vec s(static_cast<float>(scale));
  return map<2>("swish_backward", {{"dy", dy}, {"x", x}}, [s](const auto& v) { return v[0] * swish_slope(v[1], s); });
}

Tensor silu_backward(const Tensor& dy, const Tensor& x, const Tensor& y) {
  return map<3>("silu_backward", {{"dy", dy}, {"x", x}, {"y", y}},
                [](const auto& v) { return v[0] * fmadd(sigmoid(v[1]), Vec(1.0f) - v[2], v[2]); });
}

Tensor mish(const Tensor& x) {
  return map<1>("mish", {{"x", x}}, [](const auto& v) { return v[0] * tanh_softplus(v[0]); });
}

Tensor mish_backward(const Tensor& dy, const Tensor& x) {
  return map<2>("mish_backward", {{"dy", dy}, {"x", x}}, [](const auto& v) { return v[0] * mish_slope(v[1]); });
}

// --- gated units --------------------------------------------------------------------------------------------------

std::pair<Tensor, Tensor> halves(const Tensor& x, int64_t dim) {
  const int64_t half = x.size(dim) / 2;
  return {x.narrow(dim, 0, half), x.narrow(dim, half, half)};
}

// The dimension is one of x's, and its size even.
void check_halves(const Guard& guard, const Tensor& x, int64_t dim) {
  guard.tensor(x, "x");
  guard.hold(dim >= -x.dim() && dim < x.dim(), "dim", c10::str("in [", -x.dim(), ", ", x.dim(), ")"), dim);
  guard.hold(x.size(dim) % 2 == 0, "x", c10::str("an even size of dimension ", dim), x.sizes());
}

template <class F>
Tensor gated(const char* op, const Tensor& x, int64_t dim, const F& f) {
  check_halves(Guard(op), x, dim);
  const auto [opened, value] = halves(x, dim);
  return map<2>(op, {{"opened", opened}, {"value", value}}, f, at::empty(opened.sizes(), x.options()));
}

Tensor swiglu(const Tensor& x, int64_t dim) {
  return gated("swiglu", x, dim, [](const auto& v) { return swish(v[0], Vec(1.0f)) * v[1]; });
}

Tensor gelu_mul(const Tensor& x, bool tanh) {
  if (tanh) return gated("gelu_mul", x, -1, [](const auto& v) { return gelu_tanh(v[0]) * v[1]; });
  return gated("gelu_mul", x, -1, [](const auto& v) { return gelu_erf(v[0]) * v[1]; });
}

Tensor swiglu_backward(const Tensor& dy, const Tensor& x, int64_t dim) {
  const Guard guard("swiglu_backward");
  check_halves(guard, x, dim);
  const auto [opened, value] = halves(x, dim);
  guard.like(dy, "dy", opened);
  Tensor dx = at::empty(x.sizes(), x.options());
  const auto [dgate, dvalue] = halves(dx, dim);
  at::TensorIterator iterator = at::TensorIteratorConfig()
                                    .add_output(dgate)
                                    .add_output(dvalue)
                                    .add_const_input(dy)
                                    .add_const_input(opened)
                                    .add_const_input(value)
                                    .set_check_mem_overlap(false)
                                    .build();
  typed(x, "swiglu_backward", [&](auto type) {
    elementwise<decltype(type), 2, 3>(iterator, [](const auto& v) {
      const Gate g = gate(v[1]);
      return std::array<Vec, 2>{v[0] * v[2] * (g.open * fmadd(v[1], g.shut, Vec(1.0f))), v[0] * (v[1] * g.open)};
    });
  });
  return dx;
}

}  // namespace
}  // namespace softnpu::kernels::inline CPU_CAPABILITY

SOFTNPU_SCHEMAS(m) {
  m.def("gelu(Tensor x, bool tanh) -> Tensor");
  m.def("gelu_backward(Tensor dy, Tensor x, bool tanh) -> Tensor");
  m.def("swish(Tensor x, float scale, *, Tensor(a!)? out=None) -> Tensor");
  m.def("swish_backward(Tensor dy, Tensor x, float scale) -> Tensor");
  m.def("silu_backward(Tensor dy, Tensor x, Tensor y) -> Tensor");
  m.def("mish(Tensor x) -> Tensor");
  m.def("mish_backward(Tensor dy, Tensor x) -> Tensor");
  m.def("swiglu(Tensor x, int dim) -> Tensor");
  m.def("swiglu_backward(Tensor dy, Tensor x, int dim) -> Tensor");
  m.def("gelu_mul(Tensor x, bool tanh) -> Tensor");
}

SOFTNPU_KERNELS(activation, m) {
  using namespace softnpu::kernels;
  m.impl("gelu", gelu);
  m.impl("gelu_backward", gelu_backward);
  m.impl("swish", swish_forward);
  m.impl("swish_backward", swish_backward);
  m.impl("silu_backward", silu_backward);
  m.impl("mish", mish);
  m.impl("mish_backward", mish_backward);
  m.impl("swiglu", swiglu);
  m.impl("swiglu_backward", swiglu_backward);
  m.impl("gelu_mul", gelu_mul);
}
