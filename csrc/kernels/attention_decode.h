// Products of a few query rows with many keys and values (decoding): each key and value is read once, in its own type,
// and nothing is packed. Rows of keys and values are given by pointers, so that they may lie in pages.
//
// Numbers are taken two vectors at a time (a pair). Pairs of bf16 are cheapest as the numbers in even places and those
// in odd ones, so rows of queries and sums lie in that order too: `place` says where an element is.
#pragma once

#include "attention_math.h"

namespace softnpu::attention::inline CPU_CAPABILITY {

constexpr int64_t kPair = 2 * kernels::kLanes;

static_assert(sizeof(kernels::Vec) == sizeof(Vec<float>));

struct Pair {
  Vec<float> first, second;
};

template <class T>
struct Paired {
  static constexpr bool alternates = kernels::kHasHalves && std::is_same_v<T, c10::BFloat16>;

  static int64_t place(int64_t element) {
    if constexpr (!alternates) return element;
    const int64_t within = element % kPair;
    return element - within + within / 2 + within % 2 * kernels::kLanes;
  }

  SOFTNPU_INLINE static Pair load(const T* from) {
    Pair pair;
    if constexpr (alternates) {
      const kernels::Halves both = kernels::read_halves(from);
      std::memcpy(&pair.first, &both.even, sizeof(pair.first));
      std::memcpy(&pair.second, &both.odd, sizeof(pair.second));
    } else {
      const kernels::Vec first = kernels::widened(from), second = kernels::widened(from + kernels::kLanes);
      std::memcpy(&pair.first, &first, sizeof(pair.first));
      std::memcpy(&pair.second, &second, sizeof(pair.second));
    }
    return pair;
  }

  // A pair of which the row has only `count` elements: zeros after them.
  static Pair load(const T* from, int64_t count) {
    alignas(64) T some[kPair] = {};
    std::memcpy(some, from, count * sizeof(T));
    return load(some);
  }

  SOFTNPU_INLINE static void store(T* to, const Pair& pair) {
    kernels::Vec first, second;
    std::memcpy(&first, &pair.first, sizeof(first));
    std::memcpy(&second, &pair.second, sizeof(second));
    if constexpr (alternates) {
      kernels::write_halves(to, {first, second});
    } else {
      kernels::narrowed(to, first);
      kernels::narrowed(to + kernels::kLanes, second);
    }
  }

  // to[i] = factor * from[i * step], in paired order.
  static void read_row(const T* from, int64_t step, int64_t n, float factor, float* to) {
    int64_t i = 0;
    for (; step == 1 && i < n; i += kPair) {
      const Pair pair = i + kPair <= n ? load(from + i) : load(from + i, n - i);
      attention::store(to + i, pair.first * factor);
      attention::store(to + i + kernels::kLanes, pair.second * factor);
    }
    for (; i < n; ++i) to[place(i)] = static_cast<float>(from[i * step]) * factor;
  }

  // to[i * step] = factor * from[i], which is in paired order.
  static void write_row(const float* from, int64_t n, float factor, T* to, int64_t step) {
    int64_t i = 0;
    for (; step == 1 && i + kPair <= n; i += kPair) {
      const Vec<float> first = attention::load(from + i) * factor,
                       second = attention::load(from + i + kernels::kLanes) * factor;
      store(to + i, {first, second});
    }
    for (; i < n; ++i) to[i * step] = static_cast<T>(from[place(i)] * factor);
  }
};

// The sums over the halves of a vector, and the sums of four such vectors in the first four lanes.
SOFTNPU_INLINE Narrow<float> halved(const Vec<float>& v) {
  if constexpr (sizeof(v) == sizeof(Narrow<float>)) {
    Narrow<float> same;
    std::memcpy(&same, &v, sizeof(same));
    return same;
  } else {
    Narrow<float> low, high;
    std::memcpy(&low, &v, sizeof(low));
    std::memcpy(&high, reinterpret_cast<const char*>(&v) + sizeof(low), sizeof(high));
    return low + high;
  }
}

SOFTNPU_INLINE Narrow<float> sums_of(Narrow<float> a, Narrow<float> b, Narrow<float> c, Narrow<float> d) {
  typedef int32_t Index __attribute__((vector_size(32)));
  const Index low = {0, 8, 1, 9, 4, 12, 5, 13}, high = {2, 10, 3, 11, 6, 14, 7, 15};
  const Index even = {0, 1, 8, 9, 4, 5, 12, 13}, odd = {2, 3, 10, 11, 6, 7, 14, 15};
  const Narrow<float> ab = __builtin_shuffle(a, b, low) + __builtin_shuffle(a, b, high);
  const Narrow<float> cd = __builtin_shuffle(c, d, low) + __builtin_shuffle(c, d, high);
  const Narrow<float> both = __builtin_shuffle(ab, cd, even) + __builtin_shuffle(ab, cd, odd);
  const Index swapped = {4, 5, 6, 7, 0, 1, 2, 3};
  return both + __builtin_shuffle(both, swapped);
}

// s[r][j] = q[r] . keys[j] for Rows rows and Keys keys; Rows * Keys is a multiple of 4. The rows of q are ldq apart, in
// paired order, and zero beyond d.
template <class T, int Rows, int Keys>
SOFTNPU_INLINE void dot_tile(const float* q, int64_t ldq, int64_t d, const T* const* keys, int64_t at, float* s,
                             int64_t lds) {
  static_assert(Rows * Keys % 4 == 0);
  Vec<float> sum[Rows * Keys];
#pragma GCC unroll 16
  for (int i = 0; i < Rows * Keys; ++i) sum[i] = Vec<float>{};  // registers: "= {}" would clear memory first
  const auto add = [&](const Pair(&k)[Keys], int64_t x) {
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
      const Vec<float> first = load(q + r * ldq + x), second = load(q + r * ldq + x + kernels::kLanes);
#pragma GCC unroll 4
      for (int j = 0; j < Keys; ++j) sum[r * Keys + j] += first * k[j].first;
#pragma GCC unroll 4
      for (int j = 0; j < Keys; ++j) sum[r * Keys + j] += second * k[j].second;
    }
  };
  int64_t x = 0;
  for (; x + kPair <= d; x += kPair) {
    Pair k[Keys];
#pragma GCC unroll 4
    for (int j = 0; j < Keys; ++j) k[j] = Paired<T>::load(keys[j] + at + x);
    add(k, x);
  }
  if (x < d) {
    Pair k[Keys];
    for (int j = 0; j < Keys; ++j) k[j] = Paired<T>::load(keys[j] + at + x, d - x);
    add(k, x);
  }
#pragma GCC unroll 4
  for (int i = 0; i < Rows * Keys; i += 4) {
    const Narrow<float> four = sums_of(halved(sum[i]), halved(sum[i + 1]), halved(sum[i + 2]), halved(sum[i + 3]));
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) s[(i + k) / Keys * lds + (i + k) % Keys] = four[k];
  }
}

// Asks for the lines of a row that is needed soon, up to the second-level cache: the first level can wait for too few
// lines at once to hide the memory's latency.
template <class T>
SOFTNPU_INLINE void prefetch(const T* row, int64_t width) {
  for (int64_t x = 0; x < width; x += 64 / sizeof(T)) __builtin_prefetch(row + x, 0, 2);
}

constexpr int64_t kKeys = 4;     // that are multiplied at once
constexpr int64_t kValues = 16;  // between two visits of the sums

// s[r][j] = q[r] . keys[j] for j < n <= kKeys, whose elements begin `at` after the pointers.
template <class T>
void dots(int64_t rows, int64_t n, int64_t d, const float* q, int64_t ldq, const T* const* keys, int64_t at, float* s,
          int64_t lds) {
  constexpr int kBoth = kernels::kLanes == 16 ? 4 : 2;  // keys of a tile of four rows: as many as there are registers
  const T* last[kKeys];
  float rest[4 * kKeys];
  if (n < kKeys) {
    for (int64_t k = 0; k < kKeys; ++k) last[k] = keys[std::min(k, n - 1)];
    keys = last;
  }
  for (int64_t r = 0; r < rows; r += 4) {
    const int64_t now = std::min<int64_t>(rows - r, 4), ld = n < kKeys ? kKeys : lds;
    float* to = n < kKeys ? rest : s + r * lds;
    const float* left = q + r * ldq;
    if (now == 1) {
      dot_tile<T, 1, 4>(left, ldq, d, keys, at, to, ld);
    } else if (now == 2) {
      dot_tile<T, 2, 4>(left, ldq, d, keys, at, to, ld);
    } else if (now == 3) {
      dot_tile<T, 2, 4>(left, ldq, d, keys, at, to, ld);
      dot_tile<T, 1, 4>(left + 2 * ldq, ldq, d, keys, at, to + 2 * ld, ld);
    } else {
      for (int k = 0; k < kKeys; k += kBoth) dot_tile<T, 4, kBoth>(left, ldq, d, keys + k, at, to + k, ld);
    }
    if (n < kKeys) {
      for (int64_t k = 0; k < now; ++k) std::copy_n(rest + k * kKeys, n, s + (r + k) * lds);
    }
  }
}

// out[r][pair] += s[r][j] * values[j][pair]; `count` elements of the pair exist.
template <class T, int Rows>
SOFTNPU_INLINE void weigh_tile(int64_t n, const float* s, int64_t lds, const T* const* values, int64_t at,
                               int64_t count, float* out, int64_t ldo) {
  Vec<float> sum[Rows][2];
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
    sum[r][0] = load(out + r * ldo);
    sum[r][1] = load(out + r * ldo + kernels::kLanes);
  }
  const auto add = [&](const Pair& v, int64_t j) {
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
      const float weight = s[r * lds + j];
      sum[r][0] += weight * v.first;
      sum[r][1] += weight * v.second;
    }
  };
  if (count >= kPair) {
    for (int64_t j = 0; j < n; ++j) add(Paired<T>::load(values[j] + at), j);
  } else {
    for (int64_t j = 0; j < n; ++j) add(Paired<T>::load(values[j] + at, count), j);
  }
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
    store(out + r * ldo, sum[r][0]);
    store(out + r * ldo + kernels::kLanes, sum[r][1]);
  }
}

// out[r] += sum over j < n of s[r][j] * values[j]; out is in paired order.
template <class T>
void weigh(int64_t rows, int64_t n, int64_t dv, const float* s, int64_t lds, const T* const* values, int64_t at,
           float* out, int64_t ldo) {
  for (int64_t c = 0; c < dv; c += kPair) {
    for (int64_t r = 0; r < rows; r += 4) {
      const float* weights = s + r * lds;
      float* to = out + r * ldo + c;
      switch (std::min<int64_t>(rows - r, 4)) {
        case 1:
          weigh_tile<T, 1>(n, weights, lds, values, at + c, dv - c, to, ldo);
          break;
        case 2:
          weigh_tile<T, 2>(n, weights, lds, values, at + c, dv - c, to, ldo);
          break;
        case 3:
          weigh_tile<T, 3>(n, weights, lds, values, at + c, dv - c, to, ldo);
          break;
        default:
          weigh_tile<T, 4>(n, weights, lds, values, at + c, dv - c, to, ldo);
      }
    }
  }
}

}  // namespace softnpu::attention::inline CPU_CAPABILITY
