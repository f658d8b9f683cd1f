// The forward of blocked attention. See attention.h.
#include "attention.h"

#include "attention_decode.h"

namespace softnpu::attention::inline CPU_CAPABILITY {
namespace {

constexpr int64_t kRows = 384;     // rows of a task: K and V are packed once for all of them
constexpr int64_t kColumns = 256;  // keys of a block
constexpr int64_t kStrip = 24;     // rows whose scores stay in the first-level cache
constexpr int64_t kFew = 16;       // rows for which packing K and V does not pay

struct Task {
  int64_t segment, kv_head, head, heads, i0, rows;  // rows [i0, i0 + rows) of each of `heads` heads
};

std::vector<Task> plan(const Problem& p) {
  std::vector<Task> tasks;
  for (int64_t b = 0; b < static_cast<int64_t>(p.segments.size()); ++b) {
    const int64_t length = p.segments[b].q_len;
    if (length == 0) continue;
    const int64_t blocks = (length + kRows - 1) / kRows, rows = round_up((length + blocks - 1) / blocks, 6);
    const int64_t together = std::max<int64_t>(1, std::min(kRows / length, p.group));
    for (int64_t kv = 0; kv < p.kv_heads; ++kv)
      for (int64_t g = 0; g < p.group; g += together)
        for (int64_t i = (length - 1) / rows * rows; i >= 0; i -= rows)  // the longest rows of a causal mask first
          tasks.push_back({b, kv, kv * p.group + g, std::min(together, p.group - g), i, std::min(rows, length - i)});
  }
  return tasks;
}

template <class A>
struct Workspace {
  Arena<A> arena;
  A *q, *k, *v, *wide, *s, *out, *max, *sum, *scratch;
  void fit(const Problem& p, int64_t rows) {
    const int64_t dvp = round_up(p.dv, Simd<A>::panel);
    arena.carve({{&q, rows * p.d},
                 {&k, kColumns * p.d},
                 {&v, kColumns * dvp},
                 {&wide, kColumns * std::max(p.d, p.dv)},
                 {&s, kStrip * kColumns},
                 {&out, rows * dvp},
                 {&max, rows},
                 {&sum, rows},
                 {&scratch, kColumns}});
  }
};

// Where the tokens of a block of keys or values lie.
template <class T>
void tokens_of(const Problem& p, const View& cache, const Task& t, int64_t first, int64_t n, const T** out) {
  for (int64_t j = 0; j < n;) {
    const T* from = p.token<T>(cache, t.segment, t.kv_head, first + j);
    const int64_t end = p.page_size == 0 ? n : std::min(n, j + p.page_size - (first + j) % p.page_size);
    for (; j < end; ++j, from += cache.stride[2]) out[j] = from;
  }
}

// The same tokens, widened, one after the other.
template <class T, class A>
void gather(const T* const* tokens, int64_t stride, int64_t n, int64_t width, A* out) {
  for (int64_t j = 0; j < n; ++j) widen(tokens[j], stride, width, out + j * width, A(1));
}

template <class T, class A>
void forward_task(const Problem& p, const Task& t, const View& out, const View& max, const View& sum, int64_t copies,
                  Workspace<A>& w) {
  constexpr int64_t P = Simd<A>::panel;
  const A minus = -std::numeric_limits<A>::infinity();
  const Segment& seg = p.segments[t.segment];
  const int64_t total = t.heads * t.rows, dvp = round_up(p.dv, P);
  const bool few = std::is_same_v<A, float> && total <= kFew && p.d % 8 == 0 && p.dv % P == 0 && p.key.stride[3] == 1 &&
                   p.value.stride[3] == 1;
  const T *keys[kColumns], *values[kColumns];
  w.fit(p, total);
  std::fill_n(w.out, total * dvp, A(0));
  for (int64_t h = 0; h < t.heads; ++h) {
    p.rows<T, A>(p.query, t.segment, t.head + h, seg.q_start + t.i0, t.rows, p.d, static_cast<A>(p.scale),
                 w.q + h * t.rows * p.d, p.d);
    const A start = p.sink ? static_cast<A>(p.sink.at<float>(0, 0)[(t.head + h) * p.sink.stride[0]]) : minus;
    std::fill_n(w.max + h * t.rows, t.rows, start);
    std::fill_n(w.sum + h * t.rows, t.rows, p.sink ? A(1) : A(0));
  }
  for (int64_t j0 = 0; j0 < seg.kv_len; j0 += kColumns) {
    const int64_t n = std::min(kColumns, seg.kv_len - j0);
    const auto [low, high] = seg.columns(t.i0, t.i0 + t.rows, j0, n);
    if (low >= high) continue;
    tokens_of(p, p.key, t, seg.kv_start + j0, n, keys);
    tokens_of(p, p.value, t, seg.kv_start + j0, n, values);
    if (!few) {
      gather(keys, p.key.stride[3], n, p.d, w.wide);
      pack_transposed(w.wide, p.d, n, p.d, w.k);
      gather(values, p.value.stride[3], n, p.dv, w.wide);
      pack_straight(w.wide, p.dv, n, p.dv, w.v);
    }
    for (int64_t r0 = 0; r0 < total; r0 += kStrip) {
      const int64_t rows = std::min(kStrip, total - r0);
      const bool one_head = r0 / t.rows == (r0 + rows - 1) / t.rows;
      const int64_t first = t.i0 + (one_head ? r0 % t.rows : 0), last = one_head ? first + rows : t.i0 + t.rows;
      auto [from, to] = seg.columns(first, last, j0, n);
      if (from >= to) continue;
      from = from / P * P;
      const int64_t width = round_up(to, P) - from;
      if (few) {
        if constexpr (std::is_same_v<A, float>) dots(rows, to - from, p.d, w.q + r0 * p.d, keys + from, w.s, kColumns);
      } else {
        product<A, false, false>(rows, width, p.d, w.q + r0 * p.d, p.d, w.k + from * p.d, P * p.d, w.s, kColumns);
      }
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t row = r0 + r, head = t.head + row / t.rows, i = t.i0 + row % t.rows;
        A* s = w.s + r * kColumns;
        p.finish_row(t.segment, head, i, j0 + from, 0, to - from, width, s, w.scratch);
        const A top = row_max(s, width), before = w.max[row], now = std::max(before, top);
        if (now == minus) {
          std::fill_n(s, width, A(0));
          continue;
        }
        const A added = row_exp(s, width, now, A(1));
        if (now != before) {
          const A shrink = before == minus ? A(0) : std::exp(before - now);
          w.max[row] = now;
          w.sum[row] *= shrink;
          A* acc = w.out + row * dvp;
          for (int64_t c = 0; c < dvp; ++c) acc[c] *= shrink;
        }
        w.sum[row] += added;
        if (p.dropout.active) {
          const int64_t at = seg.first + (head * seg.q_len + i) * seg.kv_len + j0 + from;
          p.dropout.factors(at, to - from, w.scratch);
          for (int64_t c = 0; c < to - from; ++c) s[c] *= w.scratch[c];
        }
      }
      if (few) {
        if constexpr (std::is_same_v<A, float>)
          weigh(rows, to - from, p.dv, w.s, kColumns, values + from, w.out + r0 * dvp, dvp);
      } else {
        product<A, false, true>(rows, dvp, to - from, w.s, kColumns, w.v + from * P, n * P, w.out + r0 * dvp, dvp);
      }
    }
  }
  for (int64_t row = 0; row < total; ++row) {
    const int64_t head = t.head + row / t.rows, i = seg.q_start + t.i0 + row % t.rows;
    const bool empty = w.max[row] == minus;
    const A factor = empty ? A(0) : 1 / w.sum[row];
    T* to = out.at<T>(t.segment, head, i);
    const A* acc = w.out + row * dvp;
    for (int64_t c = 0; c < p.dv; ++c) to[c * out.stride[3]] = static_cast<T>(acc[c] * factor);
    const A huge = static_cast<A>(std::numeric_limits<float>::max());
    for (int64_t c = 0; c < copies; ++c) {
      if (max) *max.at<A>(t.segment, head, i, c) = empty ? -huge : w.max[row];
      if (sum) *sum.at<A>(t.segment, head, i, c) = empty ? huge : w.sum[row];
    }
  }
}

template <class T, class A>
void forward(const Problem& p, const View& out, const View& max, const View& sum, int64_t copies) {
  const std::vector<Task> tasks = plan(p);
  run_tasks<Workspace<A>>(static_cast<int64_t>(tasks.size()), [&](int64_t i, Workspace<A>& w) {
    forward_task<T, A>(p, tasks[i], out, max, sum, copies, w);
  });
}

void attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const at::Tensor& out,
               const MaybeTensor& softmax_max, const MaybeTensor& softmax_sum, double scale, const MaybeTensor& mask,
               const MaybeTensor& bias, double bias_scale, bool bias_toeplitz, const MaybeTensor& slopes,
               bool slopes_sqrt, int64_t slopes_shift, const MaybeTensor& sink, IntList q_start, IntList q_len,
               IntList kv_start, IntList kv_len, IntList band_low, IntList band_high, IntList prefix, double keep_prob,
               int64_t seed, int64_t offset, const MaybeTensor& dropout_bits, const MaybeTensor& pages) {
  const kernels::Guard guard("attention");
  const Problem p(guard, query, key, value,
                  {scale,        mask,   bias,      bias_scale, bias_toeplitz, slopes,       slopes_sqrt,
                   slopes_shift, sink,   q_start,   q_len,      kv_start,      kv_len,       band_low,
                   band_high,    prefix, keep_prob, seed,       offset,        dropout_bits, pages});
  expect(guard, out, "out", {query.size(0), p.heads, query.size(2), p.dv});
  guard.same_dtype(out, "out", query);
  int64_t copies = 0;  // of each statistic
  for (const auto& [t, name] : {std::pair{&softmax_max, "softmax_max"}, {&softmax_sum, "softmax_sum"}}) {
    if (!t->has_value()) continue;
    expect(guard, **t, name, {query.size(0), p.heads, query.size(2), 1});
    guard.dtype(**t, name, {accumulator(query)});
    guard.hold(copies == 0 || (*t)->size(3) == copies, name, c10::str(copies, " copies"), (*t)->sizes());
    copies = (*t)->size(3);
  }
  const View o(out), max = view_of(softmax_max), sum = view_of(softmax_sum);
  switch (query.scalar_type()) {
    case at::kHalf:
      return forward<c10::Half, float>(p, o, max, sum, copies);
    case at::kBFloat16:
      return forward<c10::BFloat16, float>(p, o, max, sum, copies);
    case at::kFloat:
      return forward<float, float>(p, o, max, sum, copies);
    default:
      return forward<double, double>(p, o, max, sum, copies);
  }
}

void dropout_bits(int64_t seed, int64_t offset, double keep_prob, const at::Tensor& bits) {
  const kernels::Guard guard("dropout_bits");
  guard.dtype(bits, "bits", {at::kByte});
  guard.hold(bits.is_contiguous(), "bits", "a contiguous tensor", bits.strides());
  guard.hold(keep_prob >= 0 && keep_prob <= 1, "keep_prob", "in [0, 1]", keep_prob);
  uint8_t* to = bits.data_ptr<uint8_t>();
  const uint64_t limit = static_cast<uint64_t>(std::llround(keep_prob * 4294967296.0));
  const PhiloxKeys keys(static_cast<uint64_t>(seed));
  kernels::parallel_for(0, (bits.numel() + 1) / 2, 4096, [&](int64_t begin, int64_t end) {
    uint32_t words[16];
    for (int64_t pair = begin; pair < end; ++pair) {
      kernels::philox4(keys.key, static_cast<uint64_t>(offset), static_cast<uint64_t>(pair) * 4, words);
      for (int64_t byte = 2 * pair; byte < std::min(2 * pair + 2, bits.numel()); ++byte) {
        uint8_t value = 0;
        for (int bit = 0; bit < 8; ++bit) value |= static_cast<uint8_t>(words[byte % 2 * 8 + bit] < limit) << bit;
        to[byte] = value;
      }
    }
  });
}

}  // namespace
}  // namespace softnpu::attention::inline CPU_CAPABILITY

#define SOFTNPU_ATTENTION_OPTIONS                                                                              \
  "*, float scale=1.0, Tensor? mask=None, Tensor? bias=None, float bias_scale=1.0, bool bias_toeplitz=False, " \
  "Tensor? slopes=None, bool slopes_sqrt=False, int slopes_shift=0, Tensor? sink=None, int[]? q_start=None, "  \
  "int[]? q_len=None, int[]? kv_start=None, int[]? kv_len=None, int[]? band_low=None, int[]? band_high=None, " \
  "int[]? prefix=None, float keep_prob=1.0, int seed=0, int offset=0, Tensor? dropout_bits=None"

SOFTNPU_SCHEMAS(m) {
  m.def(
      "attention(Tensor query, Tensor key, Tensor value, Tensor(a!) out, Tensor(b!)? softmax_max=None, "
      "Tensor(c!)? softmax_sum=None, " SOFTNPU_ATTENTION_OPTIONS ", Tensor? pages=None) -> ()");
  m.def(
      "attention_backward(Tensor query, Tensor key, Tensor value, Tensor grad, Tensor out, Tensor softmax_max, "
      "Tensor softmax_sum, Tensor(a!) dq, Tensor(b!) dk, Tensor(c!) dv, Tensor(d!)? dbias=None, "
      "Tensor(e!)? dslopes=None, Tensor(f!)? dsink=None, " SOFTNPU_ATTENTION_OPTIONS ") -> ()");
  m.def("dropout_bits(int seed, int offset, float keep_prob, Tensor(a!) bits) -> ()");
}

SOFTNPU_KERNELS(attention, m) {
  m.impl("attention", softnpu::attention::attention);
  m.impl("dropout_bits", softnpu::attention::dropout_bits);
}
