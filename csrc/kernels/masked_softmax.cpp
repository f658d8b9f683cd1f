// npu_scaled_masked_softmax and its gradient, a row at a time.
//
//   softnpu::masked_softmax(Tensor x, Tensor mask, float scale, float masked) -> Tensor
//   softnpu::masked_softmax_backward(Tensor dy, Tensor y, Tensor mask, float scale) -> Tensor
//
// softmax over the last dimension of scale * x, with `masked` in place of the elements where mask (bool, broadcast) is
// set; they have no gradient.
#include "vec.h"

namespace softnpu::kernels::inline CPU_CAPABILITY {
namespace {

using at::Tensor;

// z = the masked logits; returns the largest.
template <class T>
SOFTNPU_WALK float logits(const T* x, const bool* mask, int64_t n, float scale, float masked, float* z) {
  return row_max(n, [&](int64_t i, auto c) {
    const Vec v = Vec::blendv(read(x + i, c) * Vec(scale), Vec(masked), read_mask(mask + i, c));
    write(z + i, v, c);
    return v;
  });
}

template <class T>
SOFTNPU_WALK void normalize(float* z, int64_t n, float top, T* y) {
  const Vec peak(top);
  const float total = row_sum(n, [&](int64_t i, auto c) {
    const Vec e = exp(read(z + i, c) - peak);
    write(z + i, e, c);
    return e;
  });
  const Vec divisor(total);
  sweep(n, [&](int64_t i, auto c) { write(y + i, read(z + i, c) / divisor, c); });
}

template <class T>
SOFTNPU_WALK void gradient(const T* dy, const T* y, const bool* mask, int64_t n, float scale, T* dx) {
  const Vec dot(row_sum(n, [&](int64_t i, auto c) { return read(dy + i, c) * read(y + i, c); }));
  sweep(n, [&](int64_t i, auto c) {
    const Vec dz = read(y + i, c) * (read(dy + i, c) - dot) * Vec(scale);
    write(dx + i, Vec::blendv(dz, Vec(0.0f), read_mask(mask + i, c)), c);
  });
}

void check_mask(const Guard& guard, const Tensor& mask, const Tensor& x) {
  guard.dtype(mask, "mask", {at::kBool});
  guard.expands(mask, "mask", x.sizes());
}

Tensor masked_softmax(const Tensor& x, const Tensor& mask, double scale, double masked) {
  const Guard guard("masked_softmax");
  guard.least_rank(x, "x", 1);
  check_mask(guard, mask, x);
  const Rows from(x, 1), hidden(mask.expand_as(x), 1);
  Tensor y = at::empty(x.sizes(), x.options());
  const int64_t n = from.width;
  typed(x, "masked_softmax", [&](auto type) {
    using T = decltype(type);
    T* out = y.data_ptr<T>();
    parallel_rows(from.count, n, [&](int64_t begin, int64_t end) {
      std::vector<float> z(n);
      Cursor v(from, begin), m(hidden, begin);
      for (int64_t r = begin; r < end; ++r, v.next(), m.next()) {
        const float top =
            logits(v.row<T>(), m.row<bool>(), n, static_cast<float>(scale), static_cast<float>(masked), z.data());
        normalize(z.data(), n, top, out + r * n);
      }
    });
  });
  return y;
}

Tensor masked_softmax_backward(const Tensor& dy, const Tensor& y, const Tensor& mask, double scale) {
  const Guard guard("masked_softmax_backward");
  guard.least_rank(y, "y", 1);
  guard.like(dy, "dy", y);
  check_mask(guard, mask, y);
  const Rows grads(dy, 1), from(y, 1), hidden(mask.expand_as(y), 1);
  Result dx(dy, 1);
  const int64_t n = from.width;
  typed(y, "masked_softmax_backward", [&](auto type) {
    using T = decltype(type);
    parallel_rows(from.count, n, [&](int64_t begin, int64_t end) {
      Cursor g(grads, begin), v(from, begin), m(hidden, begin), to(dx.rows, begin);
      for (int64_t r = begin; r < end; ++r) {
        gradient(g.row<T>(), v.row<T>(), m.row<bool>(), n, static_cast<float>(scale), to.row<T>());
        for (Cursor* c : {&g, &v, &m, &to}) c->next();
      }
    });
  });
  return dx.tensor();
}

}  // namespace
}  // namespace softnpu::kernels::inline CPU_CAPABILITY

SOFTNPU_SCHEMAS(m) {
  m.def("masked_softmax(Tensor x, Tensor mask, float scale, float masked) -> Tensor");
  m.def("masked_softmax_backward(Tensor dy, Tensor y, Tensor mask, float scale) -> Tensor");
}

SOFTNPU_KERNELS(masked_softmax, m) {
  m.impl("masked_softmax", softnpu::kernels::masked_softmax);
  m.impl("masked_softmax_backward", softnpu::kernels::masked_softmax_backward);
}
