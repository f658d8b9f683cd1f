// The backward of blocked attention: scores are computed again block by block from softmax_max and softmax_sum.
//
//   P = exp(S - max) / sum,  dV = (P drop)^T dO,  dP = dO V^T,  dS = P (dP drop - rowsum(dO O)),  dQ = scale dS K,
//   dK = scale dS^T Q,  dbias = bias_scale dS,  dsink = -sum P_sink rowsum(dO O)
//
// A task owns a (segment, kv head) and, if there are fewer of those than threads, a part of its keys; then each part
// sums its own dQ, and the parts are added in order: the result does not depend on the threads.
#include "attention.h"

namespace softnpu::attention::inline CPU_CAPABILITY {
namespace {

constexpr int64_t kGradientRows = 96;
constexpr int64_t kGradientColumns = 256;

struct Gradients {
  View grad, out, max, sum, dq, dk, dv, dbias, dslopes, dsink;
};

template <class A>
struct GradientWorkspace {
  Arena<A> arena, whole;
  A *q, *q_panels, *grad, *grad_panels, *k_transposed, *v_transposed, *k_panels, *wide, *s, *ds, *dk, *dv, *scratch;
  A *dq, *delta, *max, *inverse;  // of all rows of all heads of the group

  void fit(const Problem& p, int64_t rows) {
    constexpr int64_t P = Simd<A>::panel;
    const int64_t dp = round_up(p.d, P), dvp = round_up(p.dv, P);
    arena.carve({{&q, kGradientRows * p.d},
                 {&q_panels, kGradientRows * dp},
                 {&grad, kGradientRows * p.dv},
                 {&grad_panels, kGradientRows * dvp},
                 {&k_transposed, kGradientColumns * p.d},
                 {&v_transposed, kGradientColumns * p.dv},
                 {&k_panels, kGradientColumns * dp},
                 {&wide, kGradientColumns * std::max(p.d, p.dv)},
                 {&s, kGradientRows * kGradientColumns},
                 {&ds, kGradientRows * kGradientColumns},
                 {&dk, kGradientColumns * dp},
                 {&dv, kGradientColumns * dvp},
                 {&scratch, kGradientColumns}});
    whole.carve({{&dq, rows * dp}, {&delta, rows}, {&max, rows}, {&inverse, rows}});
  }
};

struct GradientTask {
  int64_t segment, kv_head, part, parts;
};

// What the rows of the group's heads need besides the scores: rowsum(dO O), max and 1 / sum; and dsink.
template <class T, class A>
void prepare_rows(const Problem& p, const Gradients& g, const GradientTask& t, GradientWorkspace<A>& w) {
  const Segment& seg = p.segments[t.segment];
  for (int64_t h = 0; h < p.group; ++h) {
    const int64_t head = t.kv_head * p.group + h;
    A dsink = 0;
    for (int64_t i = 0; i < seg.q_len; ++i) {
      const int64_t row = h * seg.q_len + i, at = seg.q_start + i;
      const T *dy = g.grad.at<T>(t.segment, head, at), *y = g.out.at<T>(t.segment, head, at);
      A delta = 0;
      for (int64_t c = 0; c < p.dv; ++c)
        delta += static_cast<A>(dy[c * g.grad.stride[3]]) * static_cast<A>(y[c * g.out.stride[3]]);
      w.delta[row] = delta;
      w.max[row] = *g.max.at<A>(t.segment, head, at);
      w.inverse[row] = 1 / *g.sum.at<A>(t.segment, head, at);
      if (p.sink) {
        const A sink = static_cast<A>(p.sink.at<float>(0, 0)[head * p.sink.stride[0]]);
        dsink -= std::exp(sink - w.max[row]) * w.inverse[row] * delta;
      }
    }
    if (g.dsink && t.part == 0) *g.dsink.at<A>(t.segment, head) = dsink;
  }
}

// P and dS of one row in place of the scores and of dP.
template <class A>
void row_gradient(const Problem& p, const Gradients& g, const GradientTask& t, int64_t head, int64_t i, int64_t j0,
                  int64_t to, int64_t width, A* s, A* ds, GradientWorkspace<A>& w, A& dslope) {
  const Segment& seg = p.segments[t.segment];
  const int64_t row = (head - t.kv_head * p.group) * seg.q_len + i;
  const A delta = w.delta[row];
  p.finish_row(t.segment, head, i, j0, 0, to, width, s, w.scratch);
  row_exp(s, width, w.max[row], w.inverse[row]);
  if (p.dropout.active) {
    p.dropout.factors(seg.first + (head * seg.q_len + i) * seg.kv_len + j0, to, w.scratch);
    for (int64_t j = 0; j < to; ++j) {
      ds[j] = s[j] * (ds[j] * w.scratch[j] - delta);
      s[j] *= w.scratch[j];
    }
  } else {
    for (int64_t j = 0; j < to; ++j) ds[j] = s[j] * (ds[j] - delta);
  }
  std::fill(ds + to, ds + width, A(0));
  if (g.dbias) {
    A* into = reinterpret_cast<A*>(const_cast<char*>(g.dbias.data)) + p.bias_at(t.segment, head, i, g.dbias) +
              j0 * g.dbias.stride[3];
    const int64_t n = p.bias_width(i, j0, to);
    for (int64_t j = 0; j < n; ++j) into[j * g.dbias.stride[3]] += ds[j] * static_cast<A>(p.bias_scale);
  }
  if (g.dslopes)
    for (int64_t j = 0; j < to; ++j) dslope += ds[j] * p.distance<A>(i, j0 + j);
}

// row <- factor * from, rounded.
template <class A>
inline void narrow_row(const A* from, int64_t n, A factor, const View& to, int64_t b, int64_t head, int64_t row) {
  const int64_t at = b * to.stride[0] + head * to.stride[1] + row * to.stride[2];
  to.typed([&](auto* data) {
    using T = std::remove_pointer_t<decltype(data)>;
    for (int64_t c = 0; c < n; ++c) data[at + c * to.stride[3]] = static_cast<T>(from[c] * factor);
  });
}

template <class T, class A>
void backward_task(const Problem& p, const Gradients& g, const GradientTask& t, GradientWorkspace<A>& w, A* partial) {
  constexpr int64_t P = Simd<A>::panel;
  const Segment& seg = p.segments[t.segment];
  const int64_t dp = round_up(p.d, P), dvp = round_up(p.dv, P), rows = p.group * seg.q_len;
  w.fit(p, rows);
  A* dq = partial != nullptr ? partial : w.dq;
  std::fill_n(dq, rows * dp, A(0));
  prepare_rows<T, A>(p, g, t, w);
  std::vector<A> dslopes(p.group, A(0));
  const int64_t blocks = (seg.kv_len + kGradientColumns - 1) / kGradientColumns;
  for (int64_t block = t.part; block < blocks; block += t.parts) {
    const int64_t j0 = block * kGradientColumns, n = std::min(kGradientColumns, seg.kv_len - j0),
                  padded = round_up(n, P);
    p.rows<T, A>(p.key, t.segment, t.kv_head, seg.kv_start + j0, n, p.d, A(1), w.wide, p.d);
    pack_transposed(w.wide, p.d, n, p.d, w.k_transposed);
    pack_straight(w.wide, p.d, n, p.d, w.k_panels);
    p.rows<T, A>(p.value, t.segment, t.kv_head, seg.kv_start + j0, n, p.dv, A(1), w.wide, p.dv);
    pack_transposed(w.wide, p.dv, n, p.dv, w.v_transposed);
    std::fill_n(w.dk, padded * dp, A(0));
    std::fill_n(w.dv, padded * dvp, A(0));
    for (int64_t h = 0; h < p.group; ++h) {
      const int64_t head = t.kv_head * p.group + h;
      for (int64_t i0 = 0; i0 < seg.q_len; i0 += kGradientRows) {
        const int64_t m = std::min(kGradientRows, seg.q_len - i0);
        auto [from, to] = seg.columns(i0, i0 + m, j0, n);
        if (from >= to) continue;
        from = from / P * P;
        const int64_t width = round_up(to, P) - from, used = to - from;
        p.rows<T, A>(p.query, t.segment, head, seg.q_start + i0, m, p.d, static_cast<A>(p.scale), w.q, p.d);
        pack_straight(w.q, p.d, m, p.d, w.q_panels);
        p.rows<T, A>(g.grad, t.segment, head, seg.q_start + i0, m, p.dv, A(1), w.grad, p.dv);
        pack_straight(w.grad, p.dv, m, p.dv, w.grad_panels);
        product<A, false, false>(m, width, p.d, w.q, p.d, w.k_transposed + from * p.d, P * p.d, w.s, kGradientColumns);
        product<A, false, false>(m, width, p.dv, w.grad, p.dv, w.v_transposed + from * p.dv, P * p.dv, w.ds,
                                 kGradientColumns);
        for (int64_t r = 0; r < m; ++r)
          row_gradient(p, g, t, head, i0 + r, j0 + from, used, width, w.s + r * kGradientColumns,
                       w.ds + r * kGradientColumns, w, dslopes[h]);
        product<A, true, true>(used, dvp, m, w.s, kGradientColumns, w.grad_panels, m * P, w.dv + from * dvp, dvp);
        product<A, true, true>(used, dp, m, w.ds, kGradientColumns, w.q_panels, m * P, w.dk + from * dp, dp);
        product<A, false, true>(m, dp, used, w.ds, kGradientColumns, w.k_panels + from * P, n * P,
                                dq + (h * seg.q_len + i0) * dp, dp);
      }
    }
    for (int64_t r = 0; r < n; ++r) {
      narrow_row(w.dk + r * dp, p.d, A(1), g.dk, t.segment, t.kv_head, seg.kv_start + j0 + r);
      narrow_row(w.dv + r * dvp, p.dv, A(1), g.dv, t.segment, t.kv_head, seg.kv_start + j0 + r);
    }
  }
  for (int64_t h = 0; g.dslopes && h < p.group; ++h) *g.dslopes.at<A>(t.segment, t.kv_head * p.group + h) = dslopes[h];
}

template <class A>
void write_dq(const Problem& p, const Gradients& g, const GradientTask& t, const A* dq) {
  const Segment& seg = p.segments[t.segment];
  const int64_t dp = round_up(p.d, Simd<A>::panel);
  for (int64_t h = 0; h < p.group; ++h)
    for (int64_t i = 0; i < seg.q_len; ++i)
      narrow_row(dq + (h * seg.q_len + i) * dp, p.d, static_cast<A>(p.scale), g.dq, t.segment, t.kv_head * p.group + h,
                 seg.q_start + i);
}

template <class T, class A>
void backward(const Problem& p, const Gradients& g, int64_t parts, bool together) {
  const int64_t segments = static_cast<int64_t>(p.segments.size()), pairs = segments * p.kv_heads;
  if (parts == 1) {
    // A bias gradient that the segments share is summed by one thread, segment after segment.
    const int64_t inner = together ? segments : 1;
    run_tasks<GradientWorkspace<A>>(pairs / inner, [&](int64_t i, GradientWorkspace<A>& w) {
      for (int64_t s = 0; s < inner; ++s) {
        const GradientTask t = together ? GradientTask{s, i, 0, 1} : GradientTask{i / p.kv_heads, i % p.kv_heads, 0, 1};
        backward_task<T, A>(p, g, t, w, nullptr);
        write_dq(p, g, t, w.dq);
      }
    });
    return;
  }
  const int64_t dp = round_up(p.d, Simd<A>::panel);
  for (int64_t i = 0; i < pairs; ++i) {
    const int64_t segment = i / p.kv_heads, size = p.group * p.segments[segment].q_len * dp;
    Arena<A> arena;
    A* partial = nullptr;
    arena.carve({{&partial, size * parts}});
    run_tasks<GradientWorkspace<A>>(parts, [&](int64_t part, GradientWorkspace<A>& w) {
      backward_task<T, A>(p, g, {segment, i % p.kv_heads, part, parts}, w, partial + part * size);
    });
    for (int64_t part = 1; part < parts; ++part)
      for (int64_t c = 0; c < size; ++c) partial[c] += partial[part * size + c];
    write_dq(p, g, {segment, i % p.kv_heads, 0, parts}, partial);
  }
}

void attention_backward(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const at::Tensor& grad,
                        const at::Tensor& out, const at::Tensor& softmax_max, const at::Tensor& softmax_sum,
                        const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv, const MaybeTensor& dbias,
                        const MaybeTensor& dslopes, const MaybeTensor& dsink, double scale, const MaybeTensor& mask,
                        const MaybeTensor& bias, double bias_scale, bool bias_toeplitz, const MaybeTensor& slopes,
                        bool slopes_sqrt, int64_t slopes_shift, const MaybeTensor& sink, IntList q_start, IntList q_len,
                        IntList kv_start, IntList kv_len, IntList band_low, IntList band_high, IntList prefix,
                        double keep_prob, int64_t seed, int64_t offset, const MaybeTensor& dropout_bits) {
  const kernels::Guard guard("attention_backward");
  const Problem p(
      guard, query, key, value,
      {scale, mask,     bias,   bias_scale, bias_toeplitz, slopes, slopes_sqrt, slopes_shift, sink,   q_start,
       q_len, kv_start, kv_len, band_low,   band_high,     prefix, keep_prob,   seed,         offset, dropout_bits});
  const int64_t b = query.size(0), n = query.size(2);
  for (const auto& [tensor, name] : {std::pair{&grad, "grad"}, {&out, "out"}}) {
    expect(guard, *tensor, name, {b, p.heads, n, p.dv});
    guard.same_dtype(*tensor, name, query);
  }
  const at::ScalarType sums = accumulator(query);
  for (const auto& [stats, name] : {std::pair{&softmax_max, "softmax_max"}, {&softmax_sum, "softmax_sum"}}) {
    expect(guard, *stats, name, {b, p.heads, n, 1});
    guard.dtype(*stats, name, {sums});
  }
  const std::tuple<const at::Tensor&, const char*, const at::Tensor&> results[] = {
      {dq, "dq", query}, {dk, "dk", key}, {dv, "dv", value}};
  for (const auto& [tensor, name, like] : results) {
    guard.dtype(tensor, name, {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble});
    expect(guard, tensor, name, like.sizes());
  }
  if (dbias.has_value()) {
    guard.dtype(*dbias, "dbias", {sums});
    guard.hold(bias.has_value(), "dbias", "None without 'bias'", dbias->sizes());
    guard.sizes(*dbias, "dbias", bias->sizes());
  }
  const int64_t segments = static_cast<int64_t>(p.segments.size());
  for (const auto& [t, name] : {std::pair{&dslopes, "dslopes"}, {&dsink, "dsink"}}) {
    if (!t->has_value()) continue;
    guard.dtype(**t, name, {sums});
    expect(guard, **t, name, {segments, p.heads});
  }
  const Gradients g{View(grad), View(out), View(softmax_max), View(softmax_sum), View(dq),
                    View(dk),   View(dv),  view_of(dbias),    view_of(dslopes),  view_of(dsink)};
  const int64_t pairs = std::max<int64_t>(1, segments * p.kv_heads);
  const int64_t threads = at::get_num_threads();
  const int64_t parts = pairs < threads && !g.dbias && !g.dslopes ? threads : 1;
  guard.hold(!g.dbias || g.dbias.stride[1] != 0 || p.kv_heads == 1, "dbias", "a slice for each head",
             "one for all of them");
  const bool together = g.dbias && g.dbias.stride[0] == 0 && p.segments.size() > 1;
  switch (query.scalar_type()) {
    case at::kHalf:
      return backward<c10::Half, float>(p, g, parts, together);
    case at::kBFloat16:
      return backward<c10::BFloat16, float>(p, g, parts, together);
    case at::kFloat:
      return backward<float, float>(p, g, parts, together);
    default:
      return backward<double, double>(p, g, parts, together);
  }
}

}  // namespace
}  // namespace softnpu::attention::inline CPU_CAPABILITY

SOFTNPU_KERNELS(attention_backward, m) { m.impl("attention_backward", softnpu::attention::attention_backward); }
