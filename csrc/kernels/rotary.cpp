// Rotary embeddings: pairs (a, b) of a row become (a cos - b sin, b cos + a sin), and the gradient of that.
//
//   softnpu::rotary(Tensor x, Tensor cos, Tensor sin, str mode) -> Tensor
//   softnpu::rotary_backward(Tensor dy, Tensor x, Tensor cos, Tensor sin, str mode) -> (Tensor, Tensor, Tensor)
//
// All tensors have one type and rank; cos and sin broadcast over the dimensions but the last. Modes: half (a pair is
// D/2 apart), quarter (D/4 apart in each half), interleave (neighbors), interleave-half (neighbors that come out D/2
// apart). The gradients of cos and sin have their shapes.
#include "vec.h"

namespace softnpu::kernels::inline CPU_CAPABILITY {
namespace {

using at::Tensor;
using at::vec::fmadd;
using at::vec::fmsub;

struct Pair {
  Vec a, b;
};

// Where the two of a pair lie: `gap` apart, or next to each other.
template <bool Neighbors>
struct Order {
  int64_t gap;

  template <class T, class Count>
  SOFTNPU_INLINE Pair get(const T* row, int64_t i, Count count) const {
    if constexpr (!Neighbors) {
      return {read(row + i, count), read(row + gap + i, count)};
    } else if constexpr (std::is_same_v<Count, Full>) {
      const auto [a, b] = at::vec::deinterleave2(read(row + 2 * i), read(row + 2 * i + kLanes));
      return {a, b};
    } else {
      T padded[2 * kLanes] = {};
      std::memcpy(padded, row + 2 * i, 2 * count * sizeof(T));
      return get(padded, 0, Full{});
    }
  }

  template <class T, class Count>
  SOFTNPU_INLINE void put(T* row, int64_t i, const Pair& p, Count count) const {
    if constexpr (!Neighbors) {
      write(row + i, p.a, count);
      write(row + gap + i, p.b, count);
    } else if constexpr (std::is_same_v<Count, Full>) {
      const auto [low, high] = at::vec::interleave2(p.a, p.b);
      write(row + 2 * i, low);
      write(row + 2 * i + kLanes, high);
    } else {
      T padded[2 * kLanes];
      put(padded, 0, p, Full{});
      std::memcpy(row + 2 * i, padded, 2 * count * sizeof(T));
    }
  }

  template <class Count>
  SOFTNPU_INLINE void accumulate(float* row, int64_t i, const Pair& p, Count count) const {
    const Pair before = get(row, i, count);
    put(row, i, {before.a + p.a, before.b + p.b}, count);
  }
};

// `pairs` pairs of a row, read in one order and written in another (that of cos and sin).
template <class T, class In, class Out>
SOFTNPU_WALK void turn(const T* x, const T* cos, const T* sin, T* y, int64_t pairs, const In in, const Out out) {
  sweep(pairs, [&](int64_t i, auto count) {
    const Pair v = in.get(x, i, count), c = out.get(cos, i, count), s = out.get(sin, i, count);
    out.put(y, i, {fmsub(v.a, c.a, v.b * s.a), fmadd(v.b, c.b, v.a * s.b)}, count);
  });
}

template <class T, class In, class Out>
SOFTNPU_WALK void turn_back(const T* dy, const T* x, const T* cos, const T* sin, T* dx, float* dcos, float* dsin,
                            int64_t pairs, const In in, const Out out) {
  sweep(pairs, [&](int64_t i, auto count) {
    const Pair g = out.get(dy, i, count), v = in.get(x, i, count);
    const Pair c = out.get(cos, i, count), s = out.get(sin, i, count);
    in.put(dx, i, {fmadd(g.a, c.a, g.b * s.b), fmsub(g.b, c.b, g.a * s.a)}, count);
    out.accumulate(dcos, i, {g.a * v.a, g.b * v.b}, count);
    out.accumulate(dsin, i, {(g.a * v.b).neg(), g.b * v.a}, count);
  });
}

// run(offset, pairs, in, out) for each stretch of a row of the width that is turned by itself.
template <class Run>
void by_mode(c10::string_view mode, int64_t width, const Run& run) {
  const int64_t half = width / 2;
  if (mode == "half") {
    run(0, half, Order<false>{half}, Order<false>{half});
  } else if (mode == "interleave") {
    run(0, half, Order<true>{1}, Order<true>{1});
  } else if (mode == "interleave-half") {
    run(0, half, Order<true>{1}, Order<false>{half});
  } else {  // quarter
    run(0, half / 2, Order<false>{half / 2}, Order<false>{half / 2});
    run(half, half / 2, Order<false>{half / 2}, Order<false>{half / 2});
  }
}

// The mode is known, and rows hold whole pairs (of each half, for "quarter").
void check_mode(const Guard& guard, const Tensor& x, c10::string_view mode) {
  guard.least_rank(x, "x", 1);
  const bool known = mode == "half" || mode == "quarter" || mode == "interleave" || mode == "interleave-half";
  guard.hold(known, "mode", "half, quarter, interleave or interleave-half", mode);
  const int64_t unit = mode == "quarter" ? 4 : 2;
  guard.hold(x.size(-1) % unit == 0, "x", c10::str("a multiple of ", unit, " as last dimension"), x.sizes());
}

Tensor rotary(const Tensor& x, const Tensor& cos, const Tensor& sin, c10::string_view mode) {
  const Guard guard("rotary");
  check_mode(guard, x, mode);
  for (const auto& [t, name] : {std::pair{&cos, "cos"}, {&sin, "sin"}}) {
    guard.expands(*t, name, x.sizes());
    guard.same_dtype(*t, name, x);
  }
  const Rows from(x, 1), angles(cos.expand_as(x), 1), others(sin.expand_as(x), 1);
  Result y(x, 1);
  typed(x, "rotary", [&](auto type) {
    using T = decltype(type);
    by_mode(mode, from.width, [&](int64_t offset, int64_t pairs, const auto in, const auto out) {
      parallel_rows(from.count, from.width, [&](int64_t begin, int64_t end) {
        Cursor v(from, begin), c(angles, begin), s(others, begin), to(y.rows, begin);
        for (int64_t r = begin; r < end; ++r) {
          turn(v.row<T>() + offset, c.row<T>() + offset, s.row<T>() + offset, to.row<T>() + offset, pairs, in, out);
          for (Cursor* each : {&v, &c, &s, &to}) each->next();
        }
      });
    });
  });
  return y.tensor();
}

// The dimensions of x (but the last) in which cos repeats, then those in which it differs.
at::DimVector kept_last(const Tensor& cos) {
  at::DimVector order;
  for (const bool repeats : {true, false}) {
    for (int64_t d = 0; d + 1 < cos.dim(); ++d) {
      if ((cos.size(d) == 1) == repeats) order.push_back(d);
    }
  }
  order.push_back(cos.dim() - 1);
  return order;
}

std::tuple<Tensor, Tensor, Tensor> rotary_backward(const Tensor& dy, const Tensor& x, const Tensor& cos,
                                                   const Tensor& sin, c10::string_view mode) {
  const Guard guard("rotary_backward");
  check_mode(guard, x, mode);
  guard.like(dy, "dy", x);
  guard.rank(cos, "cos", x.dim());
  guard.expands(cos, "cos", x.sizes());
  guard.hold(cos.size(-1) == x.size(-1), "cos", c10::str(x.size(-1), " as last dimension"), cos.sizes());
  guard.same_dtype(cos, "cos", x);
  guard.like(sin, "sin", cos);
  const at::DimVector order = kept_last(cos);
  Tensor dx = at::empty(x.sizes(), x.options());
  Tensor dcos = at::empty(cos.sizes(), cos.options()), dsin = at::empty(cos.sizes(), cos.options());
  const Rows grads(dy.permute(order), 1), from(x.permute(order), 1), to(dx.permute(order), 1);
  const Rows angles(cos, 1), others(sin, 1), angle_grads(dcos, 1), other_grads(dsin, 1);
  const int64_t kept = angles.count, repeats = kept == 0 ? 0 : from.count / kept;
  typed(x, "rotary_backward", [&](auto type) {
    using T = decltype(type);
    by_mode(mode, from.width, [&](int64_t offset, int64_t pairs, const auto in, const auto out) {
      // A few angles at a time, whose sums stay in the first-level cache: their rows lie side by side, repeat by
      // repeat.
      const int64_t n = 2 * pairs, few = std::max<int64_t>(1, 2048 / std::max<int64_t>(1, n));
      parallel_rows((kept + few - 1) / few, few * n * repeats, [&](int64_t begin, int64_t end) {
        std::vector<float> block(few * 2 * n), sums(few * 2 * n);
        for (int64_t first = begin * few; first < std::min(end * few, kept); first += few) {
          const int64_t now = std::min(few, kept - first);
          for (auto* each : {&block, &sums}) std::fill(each->begin(), each->end(), 0.0f);
          for (int64_t r = 0; r < repeats; ++r) {
            if (r > 0 && r % Partial::kBlock == 0) {
              Partial::add(block.data(), sums.data(), now * 2 * n);
              std::fill(block.begin(), block.end(), 0.0f);
            }
            const int64_t start = r * kept + first;
            Cursor g(grads, start), v(from, start), dv(to, start), c(angles, first), s(others, first);
            for (int64_t k = 0; k < now; ++k) {
              float *dc = block.data() + k * 2 * n, *ds = dc + n;
              turn_back(g.row<T>() + offset, v.row<T>() + offset, c.row<T>() + offset, s.row<T>() + offset,
                        dv.row<T>() + offset, dc, ds, pairs, in, out);
              for (Cursor* each : {&g, &v, &dv, &c, &s}) each->next();
            }
          }
          Partial::add(block.data(), sums.data(), now * 2 * n);
          Cursor dc(angle_grads, first), ds(other_grads, first);
          for (int64_t k = 0; k < now; ++k, dc.next(), ds.next()) {
            const float* sum = sums.data() + k * 2 * n;
            sweep(n, [&](int64_t i, auto count) {
              write(dc.row<T>() + offset + i, read(sum + i, count), count);
              write(ds.row<T>() + offset + i, read(sum + n + i, count), count);
            });
          }
        }
      });
    });
  });
  return {dx, dcos, dsin};
}

}  // namespace
}  // namespace softnpu::kernels::inline CPU_CAPABILITY

SOFTNPU_SCHEMAS(m) {
  m.def("rotary(Tensor x, Tensor cos, Tensor sin, str mode) -> Tensor");
  m.def("rotary_backward(Tensor dy, Tensor x, Tensor cos, Tensor sin, str mode) -> (Tensor, Tensor, Tensor)");
}

SOFTNPU_KERNELS(rotary, m) {
  m.impl("rotary", softnpu::kernels::rotary);
  m.impl("rotary_backward", softnpu::kernels::rotary_backward);
}
