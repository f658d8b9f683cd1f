// What the vectorized kernels share: eight (or more) floats at a time from fp32, bf16 or fp16 and back, exp and
// sigmoid, rows of strided tensors, and the choice of a type. Arithmetic is fp32 throughout.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <type_traits>
#include <vector>

#include "capability.h"
#include "guard.h"
#include "lanes.h"
#include "parallel.h"

namespace softnpu::kernels::inline CPU_CAPABILITY {

using MaybeTensor = std::optional<at::Tensor>;

constexpr int64_t kGrain = 16384;  // elements that are worth a thread

// --- loads and stores ---------------------------------------------------------------------------------------------

// How many lanes count: all of them, known when compiling, or the rest of a row.
using Full = std::integral_constant<int64_t, kLanes>;

template <class T>
SOFTNPU_INLINE Vec read(const T* from, Full = {}) {
  if constexpr (std::is_same_v<T, float>)
    return Vec::loadu(from);
  else
    return widened(from);
}

// The lanes past `count` are 0.
template <class T>
SOFTNPU_INLINE Vec read(const T* from, int64_t count) {
  T padded[kLanes] = {};
  std::memcpy(padded, from, count * sizeof(T));
  return read(padded);
}

template <class T>
SOFTNPU_INLINE void write(T* to, const Vec& v, Full = {}) {
  if constexpr (std::is_same_v<T, float>)
    v.store(to);
  else
    narrowed(to, v);
}

template <class T>
SOFTNPU_INLINE void write(T* to, const Vec& v, int64_t count) {
  T padded[kLanes];
  write(padded, v);
  std::memcpy(to, padded, count * sizeof(T));
}

// body(i, count) for i = 0, 8, 16, ...: count is `Full`, and for the rest of the row an integer.
template <class Body>
SOFTNPU_INLINE void sweep(int64_t n, const Body& body) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) body(i, Full{});
  if (i < n) body(i, n - i);
}

// --- arithmetic ---------------------------------------------------------------------------------------------------

// exp within about one unit of the last place; 0 below -87.3 (not kSmall: 1e-38), infinity above 88.7, NaN for NaN.
template <bool kSmall = true>
SOFTNPU_INLINE Vec exp(const Vec& x) {
  const Vec low(-87.3365447f), high(88.7228394f), magic(12582912.0f);  // 1.5 * 2^23: low bits are an integer
  const Vec t = at::vec::clamp_max(at::vec::clamp_min(x, low), high);
  const Vec shifted = at::vec::fmadd(t, Vec(1.44269504f), magic);
  const Vec n = shifted - magic;
  Vec r = at::vec::fmadd(n, Vec(-0.693145752f), t);
  r = at::vec::fmadd(n, Vec(-1.42860677e-6f), r);
  const Vec square = r * r;  // two short chains rather than one long
  Vec p = at::vec::fmadd(Vec(8.3694188465e-3f), r, Vec(4.1668456790e-2f));
  p = at::vec::fmadd(Vec(1.3813144393e-3f), square, p);
  p = at::vec::fmadd(p, square, at::vec::fmadd(Vec(1.6666514791e-1f), r, Vec(4.9999993051e-1f)));
  p = at::vec::fmadd(p, square, r) + Vec(1.0f);
  const IntVec power = at::vec::cast<int32_t, float>(shifted) << IntVec(23);
  p = at::vec::cast<float, int32_t>(at::vec::cast<int32_t, float>(p) + power);
  if constexpr (kSmall) p = Vec::blendv(p, Vec(0.0f), x < low);
  return Vec::blendv(p, Vec(std::numeric_limits<float>::infinity()), x > high);
}

SOFTNPU_INLINE Vec sigmoid(const Vec& x) { return Vec(1.0f) / (Vec(1.0f) + exp<false>(x.neg())); }

struct Gate {
  Vec open, shut;  // sigmoid(x) and 1 - sigmoid(x), neither of them by cancellation
};

SOFTNPU_INLINE Gate gate(const Vec& x) {
  const Vec e = exp(x.neg()), open = Vec(1.0f) / (Vec(1.0f) + e);
  return {open, Vec::blendv(e * open, Vec(1.0f) - open, e > Vec(1.0f))};
}

// x * sigmoid(scale * x), as it is for infinities: NaN on the left.
SOFTNPU_INLINE Vec swish(const Vec& x, const Vec& scale) { return x * sigmoid(scale * x); }

SOFTNPU_INLINE Vec swish_slope(const Vec& x, const Vec& scale) {
  const Gate g = gate(scale * x);
  return g.open * at::vec::fmadd(scale * x, g.shut, Vec(1.0f));
}

SOFTNPU_INLINE float sum(const Vec& v) {
  return at::vec::vec_reduce_all<float>([](const Vec& a, const Vec& b) { return a + b; }, v);
}

SOFTNPU_INLINE float max(const Vec& v) {
  return at::vec::vec_reduce_all<float>([](const Vec& a, const Vec& b) { return at::vec::maximum(a, b); }, v);
}

SOFTNPU_INLINE float min(const Vec& v) { return -max(v.neg()); }

// The lanes below `count` of v, and of `other` after them.
SOFTNPU_INLINE Vec first(const Vec& v, Full, const Vec&) { return v; }
SOFTNPU_INLINE Vec first(const Vec& v, int64_t count, const Vec& other) { return Vec::set(other, v, count); }

// Combines f(i, count) over a row with four accumulators, in an order that depends on n alone.
template <class F, class Combine>
SOFTNPU_INLINE Vec reduce(int64_t n, const Vec& start, const F& f, const Combine& combine) {
  Vec acc[4] = {start, start, start, start};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int k = 0; k < 4; ++k) acc[k] = combine(acc[k], f(i + k * kLanes, Full{}));
  }
  for (; i + kLanes <= n; i += kLanes) acc[0] = combine(acc[0], f(i, Full{}));
  if (i < n) acc[1] = combine(acc[1], first(f(i, n - i), n - i, start));
  return combine(combine(acc[0], acc[1]), combine(acc[2], acc[3]));
}

template <class F>
SOFTNPU_INLINE float row_sum(int64_t n, const F& f) {
  return sum(reduce(n, Vec(0.0f), f, [](const Vec& a, const Vec& b) { return a + b; }));
}

// NaN if any is.
template <class F>
SOFTNPU_INLINE float row_max(int64_t n, const F& f, float start = -std::numeric_limits<float>::infinity()) {
  return max(reduce(n, Vec(start), f, [](const Vec& a, const Vec& b) { return at::vec::maximum(a, b); }));
}

// --- tensors ------------------------------------------------------------------------------------------------------

inline bool given(const MaybeTensor& t) { return t.has_value() && t->defined(); }

// use(T{}) with the type of the tensor: fp32, bf16 or fp16.
template <class Use>
inline void typed(const at::Tensor& t, const char* op, const Use& use) {
  switch (t.scalar_type()) {
    case at::kFloat:
      return use(float{});
    case at::kBFloat16:
      return use(c10::BFloat16{});
    case at::kHalf:
      return use(c10::Half{});
    default:
      TORCH_CHECK(false, "softnpu::", op, ": expected float32, bfloat16 or float16, received ", t.scalar_type());
  }
}

// Where mask is set, all bits of the lane.
SOFTNPU_INLINE Vec read_mask(const bool* mask, Full = {}) { return mask_of(mask); }

SOFTNPU_INLINE Vec read_mask(const bool* mask, int64_t count) {
  bool padded[kLanes] = {};
  std::memcpy(padded, mask, count);
  return read_mask(padded);
}

// body(begin, end) over rows of so many elements, in threads where it pays.
template <class Body>
inline void parallel_rows(int64_t rows, int64_t width, const Body& body) {
  parallel_for(0, rows, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, width)), body);
}

// A tensor as rows: its trailing `inner` dimensions lie together (they are copied if they do not), the others may
// have any strides, 0 for broadcast ones.
class Rows {
 public:
  Rows() = default;
  Rows(const at::Tensor& t, int64_t inner) : held_(dense(t, inner) ? t : t.contiguous()) {
    data_ = static_cast<char*>(held_.data_ptr());
    const int64_t outer = held_.dim() - inner, bytes = held_.element_size();
    for (int64_t d = outer; d < held_.dim(); ++d) width *= held_.size(d);
    for (int64_t d = outer - 1; d >= 0; --d) {
      const int64_t size = held_.size(d), step = held_.stride(d) * bytes;
      count *= size;
      if (size == 1) continue;
      if (rank_ > 0 && step == sizes_[rank_ - 1] * steps_[rank_ - 1]) {
        sizes_[rank_ - 1] *= size;
      } else {
        TORCH_CHECK(rank_ < kMaxRank, "softnpu: a tensor of more than ", kMaxRank, " dimensions");
        sizes_[rank_] = size;
        steps_[rank_++] = step;
      }
    }
  }

  // Whether the trailing dimensions lie together.
  static bool dense(const at::Tensor& t, int64_t inner) {
    int64_t expected = 1;
    for (int64_t d = t.dim() - 1; d >= t.dim() - inner; --d) {
      if (t.size(d) != 1 && t.stride(d) != expected) return false;
      expected *= t.size(d);
    }
    return true;
  }

  int64_t count = 1, width = 1;

 private:
  friend class Cursor;
  static constexpr int64_t kMaxRank = 16;
  at::Tensor held_;
  char* data_ = nullptr;
  int64_t rank_ = 0, sizes_[kMaxRank], steps_[kMaxRank];  // innermost first, steps in bytes
};

// Walks the rows in order, from any of them on.
class Cursor {
 public:
  Cursor(const Rows& rows, int64_t index) : rows_(rows), at_(rows.data_) {
    for (int64_t d = 0; d < rows.rank_; ++d) {
      place_[d] = index % rows.sizes_[d];
      index /= rows.sizes_[d];
      at_ += place_[d] * rows.steps_[d];
    }
  }

  template <class T>
  T* row() const {
    return reinterpret_cast<T*>(at_);
  }

  void next() {
    for (int64_t d = 0; d < rows_.rank_; ++d) {
      at_ += rows_.steps_[d];
      if (++place_[d] < rows_.sizes_[d]) return;
      at_ -= rows_.sizes_[d] * rows_.steps_[d];
      place_[d] = 0;
    }
  }

 private:
  const Rows& rows_;
  char* at_;
  int64_t place_[Rows::kMaxRank];
};

// A new tensor with the strides that PyTorch's elementwise operators give a result for `like`, written by rows.
class Result {
 public:
  Result(const at::Tensor& like, int64_t inner, std::optional<at::ScalarType> dtype = std::nullopt)
      : tensor_(at::empty_like(like, like.options().dtype(dtype.value_or(like.scalar_type())))),
        work_(Rows::dense(tensor_, inner) ? tensor_ : at::empty(like.sizes(), tensor_.options())),
        rows(work_, inner) {}

  // Call it when all rows are written.
  at::Tensor tensor() {
    if (!work_.is_same(tensor_)) tensor_.copy_(work_);
    return tensor_;
  }

 private:
  at::Tensor tensor_, work_;

 public:
  const Rows rows;
};

// Sums rows of floats: each thread's share by itself, in blocks so that rounding errors do not pile up, and the shares
// in order.
class Partial {
 public:
  Partial(int64_t items, int64_t cost, int64_t width) : width_(width), items_(items) {
    const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, cost));
    parts_ = std::max<int64_t>(1, std::min<int64_t>(at::get_num_threads(), items / grain));
    sums_.assign(parts_ * width_, 0.0f);
  }

  // body(begin, end, sums) adds what a few items contribute to `sums`, which has `width` floats.
  template <class Body>
  void run(const Body& body) {
    parallel_for(0, parts_, 1, [&](int64_t first, int64_t last) {
      std::vector<float> block(width_);
      for (int64_t p = first; p < last; ++p) {
        const int64_t end = items_ * (p + 1) / parts_;
        for (int64_t i = items_ * p / parts_; i < end; i += kBlock) {
          std::fill(block.begin(), block.end(), 0.0f);
          body(i, std::min(i + kBlock, end), block.data());
          add(block.data(), sums_.data() + p * width_, width_);
        }
      }
    });
  }

  const float* total() {
    for (int64_t p = 1; p < parts_; ++p) add(sums_.data() + p * width_, sums_.data(), width_);
    return sums_.data();
  }

  static void add(const float* from, float* to, int64_t n) {
    for (int64_t i = 0; i < n; ++i) to[i] += from[i];
  }

  static constexpr int64_t kBlock = 32;

 private:
  int64_t width_, items_, parts_;
  std::vector<float> sums_;
};

// A small tensor (gamma, scales) as contiguous fp32.
inline at::Tensor as_float(const at::Tensor& t) { return t.to(at::kFloat).contiguous(); }
inline const float* data_or_null(const at::Tensor& t) { return t.defined() ? t.const_data_ptr<float>() : nullptr; }

}  // namespace softnpu::kernels::inline CPU_CAPABILITY
