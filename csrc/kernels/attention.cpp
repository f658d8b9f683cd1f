// The forward of blocked attention. See attention.h.
#include "attention.h"

#include "attention_decode.h"

namespace softnpu::attention::inline CPU_CAPABILITY {
namespace {

constexpr int64_t kRows = 384;     // rows of a task: K and V are packed once for all of them
constexpr int64_t kColumns = 256;  // keys of a block
constexpr int64_t kStrip = 24;     // rows whose scores stay in the first-level cache
constexpr int64_t kFew = 16;       // rows for which packing K and V does not pay: see attention_decode.h

// Rows [i0, i0 + rows) of each of `heads` heads, which share the keys of one head; a decoding task has all rows of the
// heads of `kv_heads` heads of keys.
struct Task {
  int64_t segment, kv_head, head, heads, i0, rows, kv_heads = 0;
};

// Whether the rows of a segment that share keys are too few to pack these, and the caches can be read as they are.
bool decodes(const Problem& p, const Segment& segment) {
  return p.group * segment.q_len <= kFew && p.key.stride[3] == 1 && p.value.stride[3] == 1 &&
         p.query.type != at::kDouble;
}

// Where the heads of a token lie side by side, one task takes many of them, so that the caches are read in one stream;
// as many as leave work for every thread.
int64_t heads_at_once(const Problem& p) {
  if (p.key.stride[1] >= p.key.stride[2]) return 1;
  const int64_t wanted = 2 * at::get_num_threads(), segments = static_cast<int64_t>(p.segments.size());
  int64_t heads = p.kv_heads;
  while (heads > 1 && segments * ((p.kv_heads + heads - 1) / heads) < wanted) heads = (heads + 1) / 2;
  return heads;
}

std::vector<Task> plan(const Problem& p) {
  std::vector<Task> tasks;
  const int64_t at_once = heads_at_once(p);
  for (int64_t b = 0; b < static_cast<int64_t>(p.segments.size()); ++b) {
    const int64_t length = p.segments[b].q_len;
    if (length == 0) continue;
    if (decodes(p, p.segments[b])) {
      for (int64_t kv = 0; kv < p.kv_heads; kv += at_once)
        tasks.push_back({b, kv, kv * p.group, p.group, 0, length, std::min(at_once, p.kv_heads - kv)});
      continue;
    }
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
  void fit_few(int64_t rows, int64_t ldq, int64_t ldo) {
    arena.carve({{&q, rows * ldq},
                 {&s, rows * kColumns},
                 {&out, rows * ldo},
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

// What a row has summed up so far: the greatest score, the sum of exponentials, and the values weighed by these.
template <class A>
struct Row {
  A &max, &sum;
  A* out;
  int64_t width;

  // The scores of columns j0 + [0, n), which have room for `padded`, become weights, and the sums so far are scaled to
  // the new maximum.
  void take(const Problem& p, int64_t segment, int64_t head, int64_t i, int64_t j0, int64_t n, int64_t padded, A* s,
            A* scratch) {
    constexpr A minus = -std::numeric_limits<A>::infinity();
    p.finish_row(segment, head, i, j0, 0, n, padded, s, scratch);
    const A before = max, now = std::max(before, row_max(s, padded));
    if (now == minus) {
      std::fill_n(s, padded, A(0));
      return;
    }
    const A added = row_exp(s, padded, now, A(1));
    if (now != before) {
      const A shrink = before == minus ? A(0) : std::exp(before - now);
      max = now;
      sum *= shrink;
      for (int64_t c = 0; c < width; ++c) out[c] *= shrink;
    }
    sum += added;
    if (p.dropout.active) {
      const Segment& seg = p.segments[segment];
      p.dropout.factors(seg.first + (head * seg.q_len + i) * seg.kv_len + j0, n, scratch);
      for (int64_t c = 0; c < n; ++c) s[c] *= scratch[c];
    }
  }
};

// The results of a forward pass.
struct Results {
  View out, max, sum;
  int64_t copies;  // of each statistic

  // `put(sums, factor, out, step)` writes the sums of the row, each times the factor.
  template <class T, class A, class Put>
  void write(int64_t segment, int64_t head, int64_t i, const Row<A>& row, const Put& put) const {
    const bool empty = row.max == -std::numeric_limits<A>::infinity();
    const A huge = static_cast<A>(std::numeric_limits<float>::max());
    put(row.out, empty ? A(0) : 1 / row.sum, out.at<T>(segment, head, i), out.stride[3]);
    for (int64_t c = 0; c < copies; ++c) {
      if (max) *max.at<A>(segment, head, i, c) = empty ? -huge : row.max;
      if (sum) *sum.at<A>(segment, head, i, c) = empty ? huge : row.sum;
    }
  }
};

template <class T, class A>
void forward_task(const Problem& p, const Task& t, const Results& results, Workspace<A>& w) {
  constexpr int64_t P = Simd<A>::panel;
  const A minus = -std::numeric_limits<A>::infinity();
  const Segment& seg = p.segments[t.segment];
  const int64_t total = t.heads * t.rows, dvp = round_up(p.dv, P);
  const T *keys[kColumns], *values[kColumns];
  w.fit(p, total);
  std::fill_n(w.out, total * dvp, A(0));
  const auto row_of = [&](int64_t row) { return Row<A>{w.max[row], w.sum[row], w.out + row * dvp, dvp}; };
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
    gather(keys, p.key.stride[3], n, p.d, w.wide);
    pack_transposed(w.wide, p.d, n, p.d, w.k);
    gather(values, p.value.stride[3], n, p.dv, w.wide);
    pack_straight(w.wide, p.dv, n, p.dv, w.v);
    for (int64_t r0 = 0; r0 < total; r0 += kStrip) {
      const int64_t rows = std::min(kStrip, total - r0);
      const bool one_head = r0 / t.rows == (r0 + rows - 1) / t.rows;
      const int64_t first = t.i0 + (one_head ? r0 % t.rows : 0), last = one_head ? first + rows : t.i0 + t.rows;
      auto [from, to] = seg.columns(first, last, j0, n);
      if (from >= to) continue;
      from = from / P * P;
      const int64_t width = round_up(to, P) - from;
      product<A, false, false>(rows, width, p.d, w.q + r0 * p.d, p.d, w.k + from * p.d, P * p.d, w.s, kColumns);
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t row = r0 + r, head = t.head + row / t.rows, i = t.i0 + row % t.rows;
        row_of(row).take(p, t.segment, head, i, j0 + from, to - from, width, w.s + r * kColumns, w.scratch);
      }
      product<A, false, true>(rows, dvp, to - from, w.s, kColumns, w.v + from * P, n * P, w.out + r0 * dvp, dvp);
    }
  }
  for (int64_t row = 0; row < total; ++row) {
    const int64_t head = t.head + row / t.rows, i = seg.q_start + t.i0 + row % t.rows;
    results.write<T>(t.segment, head, i, row_of(row), [&](const A* sums, A factor, T* to, int64_t step) {
      for (int64_t c = 0; c < p.dv; ++c) to[c * step] = static_cast<T>(sums[c] * factor);
    });
  }
}

// All rows of a segment of some heads of keys, block by block of tokens. Tokens are gone through in order, all heads of
// each, so that the caches are read as they lie in memory.
template <class T>
void decode_task(const Problem& p, const Task& t, const Results& results, Workspace<float>& w) {
  const Segment& seg = p.segments[t.segment];
  const int64_t rows = p.group * t.rows, total = t.kv_heads * rows;
  const int64_t ldq = round_up(p.d, kPair), ldo = round_up(p.dv, kPair);
  const T *keys[kColumns], *values[kColumns];
  w.fit_few(total, ldq, ldo);
  std::fill_n(w.q, total * ldq, 0.0f);
  std::fill_n(w.out, total * ldo, 0.0f);
  const auto row_of = [&](int64_t row) { return Row<float>{w.max[row], w.sum[row], w.out + row * ldo, ldo}; };
  for (int64_t row = 0; row < total; ++row) {
    const int64_t head = t.head + row / t.rows;
    Paired<T>::read_row(p.query.at<T>(t.segment, head, seg.q_start + row % t.rows), p.query.stride[3], p.d,
                        static_cast<float>(p.scale), w.q + row * ldq);
    w.max[row] = p.sink ? p.sink.at<float>(0, 0)[head * p.sink.stride[0]] : -std::numeric_limits<float>::infinity();
    w.sum[row] = p.sink ? 1.0f : 0.0f;
  }
  for (int64_t j0 = 0; j0 < seg.kv_len; j0 += kColumns) {
    const int64_t n = std::min(kColumns, seg.kv_len - j0);
    const auto [from, to] = seg.columns(0, t.rows, j0, n);
    if (from >= to) continue;
    tokens_of(p, p.key, t, seg.kv_start + j0, n, keys);
    tokens_of(p, p.value, t, seg.kv_start + j0, n, values);
    for (int64_t j = from; j < to; j += kKeys) {
      const int64_t ahead = std::min(to, j + 5 * kKeys);
      for (int64_t h = 0; h < t.kv_heads; ++h) {
        const int64_t at = h * p.key.stride[1], first = h * rows;
        for (int64_t k = j + 4 * kKeys; k < ahead; ++k) prefetch(keys[k] + at, p.d);
        dots(rows, std::min(kKeys, to - j), p.d, w.q + first * ldq, ldq, keys + j, at,
             w.s + first * kColumns + j - from, kColumns);
      }
    }
    const int64_t padded = round_up(to - from, Simd<float>::panel);
    for (int64_t row = 0; row < total; ++row)
      row_of(row).take(p, t.segment, t.head + row / t.rows, row % t.rows, j0 + from, to - from, padded,
                       w.s + row * kColumns, w.scratch);
    for (int64_t j = from; j < to; j += kValues) {
      const int64_t ahead = std::min(to, j + 2 * kValues);
      for (int64_t h = 0; h < t.kv_heads; ++h) {
        const int64_t at = h * p.value.stride[1], first = h * rows;
        for (int64_t k = j + kValues; k < ahead; ++k) prefetch(values[k] + at, p.dv);
        weigh(rows, std::min(kValues, to - j), p.dv, w.s + first * kColumns + j - from, kColumns, values + j, at,
              w.out + first * ldo, ldo);
      }
    }
  }
  for (int64_t row = 0; row < total; ++row) {
    const auto put = [&](const float* sums, float factor, T* to, int64_t step) {
      Paired<T>::write_row(sums, p.dv, factor, to, step);
    };
    results.write<T>(t.segment, t.head + row / t.rows, seg.q_start + row % t.rows, row_of(row), put);
  }
}

template <class T, class A>
void forward(const Problem& p, const Results& results) {
  const std::vector<Task> tasks = plan(p);
  run_tasks<Workspace<A>>(static_cast<int64_t>(tasks.size()), [&](int64_t i, Workspace<A>& w) {
    if constexpr (std::is_same_v<A, float>) {
      if (tasks[i].kv_heads > 0) return decode_task<T>(p, tasks[i], results, w);
    }
    forward_task<T, A>(p, tasks[i], results, w);
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
  const Results results{View(out), view_of(softmax_max), view_of(softmax_sum), copies};
  switch (query.scalar_type()) {
    case at::kHalf:
      return forward<c10::Half, float>(p, results);
    case at::kBFloat16:
      return forward<c10::BFloat16, float>(p, results);
    case at::kFloat:
      return forward<float, float>(p, results);
    default:
      return forward<double, double>(p, results);
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
