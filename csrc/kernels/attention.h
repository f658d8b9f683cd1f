// Blocked attention on CPU tensors: softmax(scale * Q K^T + bias, masked) V with an online softmax, so that no
// Sq x Skv matrix exists. Forward and backward share the problem description below.
//
//   softnpu::attention(Tensor query, Tensor key, Tensor value, Tensor(a!) out,
//       Tensor(b!)? softmax_max=None, Tensor(c!)? softmax_sum=None, *, float scale=1.0,
//       Tensor? mask=None, Tensor? bias=None, float bias_scale=1.0, bool bias_toeplitz=False,
//       Tensor? slopes=None, bool slopes_sqrt=False, int slopes_shift=0, Tensor? sink=None,
//       int[]? q_start=None, int[]? q_len=None, int[]? kv_start=None, int[]? kv_len=None,
//       int[]? band_low=None, int[]? band_high=None, int[]? prefix=None,
//       float keep_prob=1.0, int seed=0, int offset=0, Tensor? dropout_bits=None, Tensor? pages=None) -> ()
//
//   softnpu::attention_backward(Tensor query, Tensor key, Tensor value, Tensor grad, Tensor out,
//       Tensor softmax_max, Tensor softmax_sum, Tensor(a!) dq, Tensor(b!) dk, Tensor(c!) dv,
//       Tensor(d!)? dbias=None, Tensor(e!)? dslopes=None, Tensor(f!)? dsink=None, *, <the same options but pages>) ->
//       ()
//
// Tensors, all by strides (pass transposed or expanded views, nothing is copied):
//   query, out, grad, dq   [B, N, Sq, D], out and grad with Dv; fp16, bf16, fp32 or fp64
//   key, value, dk, dv     [B, Nkv, Skv, D] and [B, Nkv, Skv, Dv]; N is a multiple of Nkv (grouped heads)
//   softmax_max, _sum      [B, N, Sq, R] fp32 (fp64 for fp64): max_j and sum_j exp(s - max), R copies of each;
//                          the logsumexp is max + log(sum). A row with nothing to attend to: out = 0,
//                          max = -FLT_MAX, sum = FLT_MAX.
//   mask                   [B|1, N|1, Sq|1, Skv|1] bool or uint8, nonzero = masked out
//   bias, dbias            [B|1, N|1, Sq|1, Skv|1] floating point, added as bias_scale * bias. bias_toeplitz: the last
//                          H rows of an S x S matrix that depends on i - j only; [B|1, N|1, H, S]. dbias: fp32/fp64,
//                          zeroed by the caller, the shape of bias.
//   slopes, dslopes        [B|1, N] fp32: adds -slope * |j + slopes_shift - i| (or its square root); dslopes [B, N]
//   sink, dsink            [N] fp32: one more logit a head that takes part in the sum and has no value; dsink [B, N].
//                          dslopes and dsink are fp32 (fp64 for fp64), one value a segment
//
// Segments: the rows of batch b that take part are q_start[b] + i for i < q_len[b], and the keys kv_start[b] + j for
// j < kv_len[b]; without them, everything. `query` (and out, grad, dq, stats) may have batch size 1 while there are
// many segments: then all segments lie in that one batch (the TND layout as [1, N, T, D]); likewise `key` and `value`.
// mask, bias, bands and dropout count i and j from the segment's start. Rows of `out` in no segment are not written;
// dq, dk and dv are zeroed by the caller.
//
// Pages: with `pages` [B, count] int64, key and value are caches [blocks, Nkv, size, D], and token j of segment b is
// row j % size of block pages[b, j / size].
//
// Bands: j takes part when i + band_low[b] <= j <= i + band_high[b], or j < prefix[b]. One value serves all segments.
// Causal from the top left: band_high = 0; from the bottom right: band_high = kv_len - q_len. Blocks outside the
// band are skipped.
//
// Dropout keeps position n, counted over [segment][head][i][j], when word n % 4 of Philox4x32-10 with key `seed` and
// counter (n / 4, offset) is below keep_prob * 2^32; or, if given, when bit n of `dropout_bits` (uint8, low bit first)
// is set. softnpu::dropout_bits(int seed, int offset, float keep_prob, Tensor(a!) bits) -> () writes those bits.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>
#include <new>
#include <optional>
#include <vector>

#include "attention_dropout.h"
#include "attention_math.h"
#include "capability.h"
#include "guard.h"
#include "parallel.h"

namespace softnpu::attention::inline CPU_CAPABILITY {

using IntList = c10::OptionalArrayRef<int64_t>;
using MaybeTensor = std::optional<at::Tensor>;

// A tensor of up to four dimensions by strides; a dimension of size 1 repeats.
struct View {
  const char* data = nullptr;
  int64_t stride[4] = {0, 0, 0, 0};
  at::ScalarType type = at::kFloat;

  View() = default;
  explicit View(const at::Tensor& t) : data(static_cast<const char*>(t.data_ptr())), type(t.scalar_type()) {
    for (int64_t d = 0; d < t.dim(); ++d) stride[d] = t.size(d) == 1 ? 0 : t.stride(d);
  }
  explicit operator bool() const { return data != nullptr; }

  // use(data) with the data as what it is.
  template <class Use>
  void typed(const Use& use) const {
    char* bytes = const_cast<char*>(data);
    switch (type) {
      case at::kHalf:
        return use(reinterpret_cast<c10::Half*>(bytes));
      case at::kBFloat16:
        return use(reinterpret_cast<c10::BFloat16*>(bytes));
      case at::kDouble:
        return use(reinterpret_cast<double*>(bytes));
      default:
        return use(reinterpret_cast<float*>(bytes));
    }
  }

  template <class T>
  T* at(int64_t b, int64_t n, int64_t i = 0, int64_t j = 0) const {
    return const_cast<T*>(reinterpret_cast<const T*>(data)) + b * stride[0] + n * stride[1] + i * stride[2] +
           j * stride[3];
  }
};

// Raises unless each dimension has at least the size asked for, or size 1 where it may repeat.
void expect(const kernels::Guard& guard, const at::Tensor& t, const char* name, at::IntArrayRef least,
            bool repeats = false);

// The dtype that sums are kept in.
inline at::ScalarType accumulator(const at::Tensor& query) {
  return query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

inline View view_of(const MaybeTensor& t) { return t.has_value() && t->defined() ? View(*t) : View(); }

struct Options {
  double scale;
  MaybeTensor mask, bias;
  double bias_scale;
  bool bias_toeplitz;
  MaybeTensor slopes;
  bool slopes_sqrt;
  int64_t slopes_shift;
  MaybeTensor sink;
  IntList q_start, q_len, kv_start, kv_len, band_low, band_high, prefix;
  double keep_prob;
  int64_t seed, offset;
  MaybeTensor dropout_bits, pages = std::nullopt;
};

// One segment: lengths, band and where its positions begin in the dropout sequence.
struct Segment {
  int64_t q_start, q_len, kv_start, kv_len, low, high, prefix, first;

  // Columns [begin, end) that rows [i0, i1) may see, prefix apart.
  int64_t begin(int64_t i0) const { return std::clamp<int64_t>(i0 + low, 0, kv_len); }
  int64_t end(int64_t i1) const { return std::clamp<int64_t>(i1 + high, 0, kv_len); }
  // The same within a block of columns that starts at j0, the prefix included.
  std::pair<int64_t, int64_t> columns(int64_t i0, int64_t i1, int64_t j0, int64_t n) const {
    int64_t from = std::max<int64_t>(begin(i0) - j0, 0), to = std::min(end(i1) - j0, n);
    if (prefix > j0) {
      to = std::max(from < to ? to : 0, std::min(prefix - j0, n));
      from = 0;
    }
    return {from, to};
  }
};

// What forward and backward share: the segments and everything that turns a product into a score.
struct Problem {
  int64_t heads, kv_heads, group, d, dv;
  std::vector<Segment> segments;
  double scale;
  View query, key, value, mask, bias, slopes, sink;
  double bias_scale;
  bool bias_toeplitz;
  int64_t bias_rows = 0, bias_columns = 0;
  bool slopes_sqrt;
  int64_t slopes_shift;
  Dropout dropout;
  std::vector<int64_t> pages;  // by segment, the block of each page
  int64_t page_size = 0, page_count = 0;

  Problem(const kernels::Guard& guard, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Options& o);

  // Rows of a floating-point tensor, in the precision of the computation.
  template <class T, class A>
  void rows(const View& view, int64_t b, int64_t head, int64_t start, int64_t count, int64_t width, A factor, A* out,
            int64_t ld) const {
    for (int64_t r = 0; r < count; ++r)
      widen(view.at<T>(b, head, start + r), view.stride[3], width, out + r * ld, factor);
  }

  // Token j of a cache (key or value).
  template <class T>
  const T* token(const View& cache, int64_t b, int64_t head, int64_t j) const {
    if (page_size == 0) return cache.at<T>(b, head, j);
    return cache.at<T>(pages[b * page_count + j / page_size], head, j % page_size);
  }

  // Where row i of the bias (or of its gradient) begins, so that index j is column j of the scores; in elements.
  int64_t bias_at(int64_t b, int64_t head, int64_t i, const View& of) const {
    int64_t row = i, shift = 0;
    if (bias_toeplitz) {
      row = std::max(i, bias_columns - bias_rows);
      shift = row - i;
      row -= bias_columns - bias_rows;
    }
    return b * of.stride[0] + head * of.stride[1] + row * of.stride[2] + shift * of.stride[3];
  }

  // How many of n columns from j on row i of the bias has: a compressed one ends where everything is masked.
  int64_t bias_width(int64_t i, int64_t j, int64_t n) const {
    if (!bias_toeplitz) return n;
    return std::clamp<int64_t>(bias_columns - std::max<int64_t>(0, bias_columns - bias_rows - i) - j, 0, n);
  }

  // -|j + shift - i| or -sqrt of it, what a slope multiplies.
  template <class A>
  A distance(int64_t i, int64_t j) const {
    const A x = static_cast<A>(std::abs(j + slopes_shift - i));
    return slopes_sqrt ? -std::sqrt(x) : -x;
  }

  // s holds the scaled products of row i with columns j0 + [from, to): adds the bias, and -inf where masked, also up
  // to `padded`. `scratch` has room for the row.
  template <class A>
  void finish_row(int64_t b, int64_t head, int64_t i, int64_t j0, int64_t from, int64_t to, int64_t padded, A* s,
                  A* scratch) const;
};

// Scratch memory of a thread: aligned, kept from task to task, never initialized.
template <class A>
class Arena {
 public:
  Arena() = default;
  ~Arena() { ::operator delete[](data_, kAlign); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  // Points each pointer at its own part of the memory.
  void carve(std::initializer_list<std::pair<A**, int64_t>> parts) {
    int64_t need = 0;
    for (const auto& part : parts) need += round_up(part.second, 64);
    if (need > size_) {
      ::operator delete[](data_, kAlign);
      data_ = nullptr;
      data_ = static_cast<A*>(::operator new[](need * sizeof(A), kAlign));
      size_ = need;
    }
    A* next = data_;
    for (const auto& part : parts) {
      *part.first = next;
      next += round_up(part.second, 64);
    }
  }

 private:
  static constexpr std::align_val_t kAlign{64};
  A* data_ = nullptr;
  int64_t size_ = 0;
};

// Runs task(index, thread state) for every index, each thread taking the next one that is free.
template <class State, class Task>
void run_tasks(int64_t count, const Task& task) {
  std::atomic<int64_t> next{0};
  const int64_t threads = std::min<int64_t>(at::get_num_threads(), count);
  kernels::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      std::unique_ptr<State> state;
      for (int64_t i = next++; i < count; i = next++) {
        if (!state) state = std::make_unique<State>();
        task(i, *state);
      }
    }
  });
}

template <class A>
void Problem::finish_row(int64_t b, int64_t head, int64_t i, int64_t j0, int64_t from, int64_t to, int64_t padded, A* s,
                         A* scratch) const {
  const A minus = -std::numeric_limits<A>::infinity();
  const Segment& seg = segments[b];
  std::fill(s + to, s + padded, minus);
  if (bias) {
    const int64_t n = bias_width(i, j0 + from, to - from);
    const int64_t at = bias_at(b, head, i, bias) + (j0 + from) * bias.stride[3];
    const A factor = static_cast<A>(bias_scale);
    bias.typed([&](auto* data) { widen(data + at, bias.stride[3], n, scratch, factor); });
    for (int64_t j = 0; j < n; ++j) s[from + j] += scratch[j];
  }
  if (slopes) {
    const A slope = static_cast<A>(*slopes.at<float>(b, head));
    for (int64_t j = from; j < to; ++j) s[j] += slope * distance<A>(i, j0 + j);
  }
  if (mask) {
    const uint8_t* m = mask.at<uint8_t>(b, head, i, j0);
    const int64_t step = mask.stride[3];
    if (step == 1) {
      for (int64_t j = from; j < to; ++j) s[j] = m[j] ? minus : s[j];
    } else {
      for (int64_t j = from; j < to; ++j) s[j] = m[j * step] ? minus : s[j];
    }
  }
  const int64_t seen = std::clamp<int64_t>(seg.prefix - j0, from, to);  // the prefix is always visible
  const int64_t low = std::clamp<int64_t>(seg.begin(i) - j0, seen, to);
  const int64_t high = std::clamp<int64_t>(seg.end(i + 1) - j0, low, to);
  std::fill(s + seen, s + low, minus);
  std::fill(s + high, s + to, minus);
}

}  // namespace softnpu::attention::inline CPU_CAPABILITY
