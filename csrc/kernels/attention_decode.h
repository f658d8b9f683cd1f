// Products of a few query rows with many keys and values (decoding): each key and value is read once, in its own type,
// and nothing is packed. Rows of keys and values are given by pointers, so that they may lie in pages.
#pragma once

#include "attention_math.h"

namespace softnpu::attention::inline CPU_CAPABILITY {

// Eight values as fp32.
template <class T>
inline Narrow<float> load_wide(const T* p) {
  if constexpr (std::is_same_v<T, float>) {
    return load<Narrow<float>>(p);
  } else if constexpr (std::is_same_v<T, c10::BFloat16>) {
    typedef uint16_t Halves __attribute__((vector_size(16)));
    typedef uint32_t Words __attribute__((vector_size(32)));
    Halves bits;
    std::memcpy(&bits, p, sizeof(bits));
    const Words words = __builtin_convertvector(bits, Words) << 16;
    Narrow<float> v;
    std::memcpy(&v, &words, sizeof(v));
    return v;
  } else {
    Narrow<float> v;
    kernels::widen8(p, reinterpret_cast<float*>(&v));
    return v;
  }
}

// The sums of four vectors, in the first four lanes.
inline Narrow<float> sums_of(Narrow<float> a, Narrow<float> b, Narrow<float> c, Narrow<float> d) {
  typedef int32_t Index __attribute__((vector_size(32)));
  const Index low = {0, 8, 1, 9, 4, 12, 5, 13}, high = {2, 10, 3, 11, 6, 14, 7, 15};
  const Index even = {0, 1, 8, 9, 4, 5, 12, 13}, odd = {2, 3, 10, 11, 6, 7, 14, 15};
  const Narrow<float> ab = __builtin_shuffle(a, b, low) + __builtin_shuffle(a, b, high);
  const Narrow<float> cd = __builtin_shuffle(c, d, low) + __builtin_shuffle(c, d, high);
  const Narrow<float> both = __builtin_shuffle(ab, cd, even) + __builtin_shuffle(ab, cd, odd);
  const Index swapped = {4, 5, 6, 7, 0, 1, 2, 3};
  return both + __builtin_shuffle(both, swapped);
}

inline void prefetch(const void* row, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(static_cast<const char*>(row) + at);
}

// s[r][j] = q[r] . keys[j] for Rows rows and Keys keys; Rows * Keys is a multiple of 4.
template <class T, int Rows, int Keys>
inline void dot_tile(const float* q, int64_t d, const T* const* keys, float* s, int64_t lds) {
  static_assert(Rows * Keys % 4 == 0);
  Narrow<float> sum[Rows * Keys] = {};
  for (int64_t x = 0; x < d; x += 8) {
    Narrow<float> k[Keys];
#pragma GCC unroll 4
    for (int j = 0; j < Keys; ++j) k[j] = load_wide(keys[j] + x);
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
      const Narrow<float> row = load<Narrow<float>>(q + r * d + x);
#pragma GCC unroll 4
      for (int j = 0; j < Keys; ++j) sum[r * Keys + j] += row * k[j];
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < Rows * Keys; i += 4) {
    const Narrow<float> four = sums_of(sum[i], sum[i + 1], sum[i + 2], sum[i + 3]);
    for (int k = 0; k < 4; ++k) s[(i + k) / Keys * lds + (i + k) % Keys] = four[k];
  }
}

// s[r][j] = q[r] . keys[j], j < n; d is a multiple of 8.
template <class T>
void dots(int64_t rows, int64_t n, int64_t d, const float* q, const T* const* keys, float* s, int64_t lds) {
  constexpr int64_t kAhead = 16;
  const T* last[4];
  float rest[16];
  for (int64_t j = 0; j < n; j += 4) {
    const T* const* four = keys + j;
    for (int64_t k = j + kAhead; k < std::min(j + kAhead + 4, n); ++k) prefetch(keys[k], d * sizeof(T));
    const bool whole = j + 4 <= n;
    if (!whole) {
      for (int64_t k = 0; k < 4; ++k) last[k] = keys[std::min(j + k, n - 1)];
      four = last;
    }
    for (int64_t r = 0; r < rows;) {
      const int64_t now = std::min<int64_t>(rows - r, 4);
      float* to = whole ? s + r * lds + j : rest;
      const int64_t ld = whole ? lds : 4;
      const float* left = q + r * d;
      if (now == 1) {
        dot_tile<T, 1, 4>(left, d, four, to, ld);
      } else if (now == 2) {
        dot_tile<T, 2, 4>(left, d, four, to, ld);
      } else if (now == 3) {
        dot_tile<T, 2, 4>(left, d, four, to, ld);
        dot_tile<T, 1, 4>(left + 2 * d, d, four, to + 2 * ld, ld);
      } else {
        dot_tile<T, 4, 2>(left, d, four, to, ld);
        dot_tile<T, 4, 2>(left, d, four + 2, to + 2, ld);
      }
      if (!whole) {
        for (int64_t k = 0; k < now; ++k) std::copy_n(rest + k * 4, n - j, s + (r + k) * lds + j);
      }
      r += now;
    }
  }
}

// out[r][16] += s[r][j] * values[j][16]
template <class T, int Rows>
inline void weigh_tile(int64_t n, const float* s, int64_t lds, const T* const* values, int64_t at, float* out,
                       int64_t ldo) {
  Narrow<float> sum[Rows][2];
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
    sum[r][0] = load<Narrow<float>>(out + r * ldo);
    sum[r][1] = load<Narrow<float>>(out + r * ldo + 8);
  }
  for (int64_t j = 0; j < n; ++j) {
    const Narrow<float> left = load_wide(values[j] + at), right = load_wide(values[j] + at + 8);
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
      const float weight = s[r * lds + j];
      sum[r][0] += weight * left;
      sum[r][1] += weight * right;
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
    store(out + r * ldo, sum[r][0]);
    store(out + r * ldo + 8, sum[r][1]);
  }
}

// out[r] += sum over j < n of s[r][j] * values[j]; dv is a multiple of 16.
template <class T>
void weigh(int64_t rows, int64_t n, int64_t dv, const float* s, int64_t lds, const T* const* values, float* out,
           int64_t ldo) {
  constexpr int64_t kBlock = 8;  // rows of caches often lie 2 KB apart: more of them push each other out of the cache
  for (int64_t j = 0; j < n; j += kBlock) {
    const int64_t now = std::min(kBlock, n - j);
    for (int64_t c = 0; c < dv; c += 16) {
      // the lines of the next block, a share with each pass over this one
      const int64_t first = c * kBlock / dv, last = (c + 16) * kBlock / dv;
      for (int64_t k = first; k < last && j + kBlock + k < n; ++k) prefetch(values[j + kBlock + k], dv * sizeof(T));
      for (int64_t r = 0; r < rows; r += 4) {
        const float* weights = s + r * lds + j;
        float* to = out + r * ldo + c;
        switch (std::min<int64_t>(rows - r, 4)) {
          case 1:
            weigh_tile<T, 1>(now, weights, lds, values + j, c, to, ldo);
            break;
          case 2:
            weigh_tile<T, 2>(now, weights, lds, values + j, c, to, ldo);
            break;
          case 3:
            weigh_tile<T, 3>(now, weights, lds, values + j, c, to, ldo);
            break;
          default:
            weigh_tile<T, 4>(now, weights, lds, values + j, c, to, ldo);
        }
      }
    }
  }
}

}  // namespace softnpu::attention::inline CPU_CAPABILITY
