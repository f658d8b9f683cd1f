// The arithmetic of blocked attention: vectors, conversion, a register-blocked matrix product, packing, exp.
// Vectors are the compiler's own, so the code is the same on every processor: 64 bytes where it has AVX-512, else 32.
#pragma once
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "lanes.h"

namespace softnpu::attention::inline CPU_CAPABILITY {

#ifdef CPU_CAPABILITY_AVX512
constexpr int64_t kVectorBytes = 64;
#else
constexpr int64_t kVectorBytes = 32;
#endif

template <class A, int64_t Bytes = kVectorBytes>
struct Simd {
  typedef A Vec __attribute__((vector_size(Bytes)));
  static constexpr int64_t lanes = Bytes / sizeof(A);
  static constexpr int64_t panel = 2 * lanes;  // columns that one packed panel holds
};

template <class A>
using Vec = typename Simd<A>::Vec;

// Of 32 bytes everywhere: what is transposed, and what is added up across its lanes.
template <class A>
using Narrow = typename Simd<A, 32>::Vec;

template <class V = void, class A>
inline auto load(const A* p) {
  std::conditional_t<std::is_void_v<V>, Vec<A>, V> v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

template <class A, class V>
inline void store(A* p, const V& v) {
  std::memcpy(p, &v, sizeof(v));
}

inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// --- conversion ---------------------------------------------------------------------------------------------------

// dst[i] = factor * src[i * stride]
template <class T, class A>
inline void widen(const T* src, int64_t stride, int64_t n, A* dst, A factor) {
  int64_t i = 0;
  if (stride == 1) {
    if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
      for (; i < n; ++i) dst[i] = static_cast<A>(src[i]) * factor;
    } else if constexpr (std::is_same_v<T, c10::BFloat16> && std::is_same_v<A, float>) {
      const auto* bits = reinterpret_cast<const uint16_t*>(src);
      for (; i < n; ++i) {
        const uint32_t word = static_cast<uint32_t>(bits[i]) << 16;
        float value;
        std::memcpy(&value, &word, sizeof(value));
        dst[i] = value * factor;
      }
    }
    if constexpr (std::is_same_v<T, c10::Half> && std::is_same_v<A, float>) {
      for (; i + 8 <= n; i += 8) {
        float eight[8];
        kernels::widen8(src + i, eight);
        for (int k = 0; k < 8; ++k) dst[i + k] = eight[k] * factor;
      }
    }
  }
  for (; i < n; ++i) dst[i] = static_cast<A>(src[i * stride]) * factor;
}

// --- matrix product -----------------------------------------------------------------------------------------------

// Eight (four) rows become eight (four) columns; `row(r)` loads row r.
template <class A>
inline void transpose_tile(const A* src, int64_t ld, A* dst, int64_t dst_ld) {
  constexpr int64_t L = Simd<A, 32>::lanes;
  Narrow<A> v[L], w[L];
  for (int r = 0; r < L; ++r) v[r] = load<Narrow<A>>(src + r * ld);
  if constexpr (L == 8) {
    typedef int32_t Index __attribute__((vector_size(32)));
    const Index low = {0, 8, 1, 9, 4, 12, 5, 13}, high = {2, 10, 3, 11, 6, 14, 7, 15};
    const Index even = {0, 1, 8, 9, 4, 5, 12, 13}, odd = {2, 3, 10, 11, 6, 7, 14, 15};
    const Index front = {0, 1, 2, 3, 8, 9, 10, 11}, back = {4, 5, 6, 7, 12, 13, 14, 15};
    for (int r = 0; r < 8; r += 2) {
      w[r] = __builtin_shuffle(v[r], v[r + 1], low);
      w[r + 1] = __builtin_shuffle(v[r], v[r + 1], high);
    }
    for (int r = 0; r < 8; r += 4) {
      v[r] = __builtin_shuffle(w[r], w[r + 2], even);
      v[r + 1] = __builtin_shuffle(w[r], w[r + 2], odd);
      v[r + 2] = __builtin_shuffle(w[r + 1], w[r + 3], even);
      v[r + 3] = __builtin_shuffle(w[r + 1], w[r + 3], odd);
    }
    for (int r = 0; r < 4; ++r) {
      store(dst + r * dst_ld, __builtin_shuffle(v[r], v[r + 4], front));
      store(dst + (r + 4) * dst_ld, __builtin_shuffle(v[r], v[r + 4], back));
    }
  } else {
    for (int r = 0; r < L; ++r)
      for (int c = 0; c < L; ++c) dst[c * dst_ld + r] = v[r][c];
  }
}

// rows [n][k] (leading dimension ld) -> panels [n / panel][k][panel], the product's right side B = rows^T; the last
// panel is padded with zeros.
template <class A>
void pack_transposed(const A* rows, int64_t ld, int64_t n, int64_t k, A* out) {
  constexpr int64_t L = Simd<A, 32>::lanes, P = Simd<A>::panel;
  for (int64_t j = 0; j < n; j += L) {
    A* base = out + j / P * P * k + j % P;
    if (j + L <= n) {
      int64_t d = 0;
      for (; d + L <= k; d += L) transpose_tile(rows + j * ld + d, ld, base + d * P, P);
      for (; d < k; ++d)
        for (int64_t r = 0; r < L; ++r) base[d * P + r] = rows[(j + r) * ld + d];
    } else {
      for (int64_t d = 0; d < k; ++d)
        for (int64_t r = 0; r < L; ++r) base[d * P + r] = j + r < n ? rows[(j + r) * ld + d] : A(0);
    }
  }
  const int64_t visited = round_up(n, L) % P;
  if (visited != 0) {  // the last panel's columns after those
    A* base = out + n / P * P * k;
    for (int64_t d = 0; d < k; ++d) std::fill(base + d * P + visited, base + d * P + P, A(0));
  }
}

// rows [k][n] -> panels [n / panel][k][panel], the product's right side B = rows.
template <class A>
void pack_straight(const A* rows, int64_t ld, int64_t k, int64_t n, A* out) {
  constexpr int64_t P = Simd<A>::panel;
  for (int64_t c = 0; c < n; c += P) {
    const int64_t width = std::min(P, n - c);
    for (int64_t r = 0; r < k; ++r, out += P) {
      std::copy(rows + r * ld + c, rows + r * ld + c + width, out);
      std::fill(out + width, out + P, A(0));
    }
  }
}

// C[rows][panel] (+)= A[rows][k] B[k][panel]; the left side is read transposed if Trans.
template <class A, int Rows, bool Trans, bool Add>
inline void product_tile(const A* a, int64_t lda, const A* b, int64_t k, A* c, int64_t ldc) {
  constexpr int64_t L = Simd<A>::lanes;
  Vec<A> sum[Rows][2] = {};
  for (int64_t x = 0; x < k; ++x, b += 2 * L) {
    const Vec<A> left = load(b), right = load(b + L);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const A value = Trans ? a[x * lda + r] : a[r * lda + x];
      sum[r][0] += value * left;
      sum[r][1] += value * right;
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
    A* row = c + r * ldc;
    if constexpr (Add) {
      sum[r][0] += load(row);
      sum[r][1] += load(row + L);
    }
    store(row, sum[r][0]);
    store(row + L, sum[r][1]);
  }
}

// C[m][n] (+)= A[m][k] B[k][n]; n counts whole panels, which lie panel_step apart in b.
template <class A, bool Trans, bool Add>
void product(int64_t m, int64_t n, int64_t k, const A* a, int64_t lda, const A* b, int64_t panel_step, A* c,
             int64_t ldc) {
  constexpr int64_t P = Simd<A>::panel;
  for (int64_t j = 0; j < n; j += P, b += panel_step) {
    int64_t r = 0;
    for (; r + 6 <= m; r += 6)
      product_tile<A, 6, Trans, Add>(a + (Trans ? r : r * lda), lda, b, k, c + r * ldc + j, ldc);
    const A* rest = a + (Trans ? r : r * lda);
    A* to = c + r * ldc + j;
    switch (m - r) {
      case 5:
        product_tile<A, 5, Trans, Add>(rest, lda, b, k, to, ldc);
        break;
      case 4:
        product_tile<A, 4, Trans, Add>(rest, lda, b, k, to, ldc);
        break;
      case 3:
        product_tile<A, 3, Trans, Add>(rest, lda, b, k, to, ldc);
        break;
      case 2:
        product_tile<A, 2, Trans, Add>(rest, lda, b, k, to, ldc);
        break;
      case 1:
        product_tile<A, 1, Trans, Add>(rest, lda, b, k, to, ldc);
        break;
      default:
        break;
    }
  }
}

// --- exp and rows -------------------------------------------------------------------------------------------------

// exp(x) for x <= 0 or NaN, with an error far below the rounding of a sum of such terms; below -87 it is 0.
inline Vec<float> exp_nonpositive(Vec<float> x) {
  typedef int32_t Bits __attribute__((vector_size(kVectorBytes)));
  const Vec<float> t = x * 1.44269504088896341f;
  const Vec<float> shifted = t + 12582912.0f;  // 1.5 * 2^23: the low bits now hold t, rounded to an integer
  const Vec<float> f = t - (shifted - 12582912.0f);
  Vec<float> y = f * 1.326472731e-03f + 9.671512991e-03f;  // 2^f on [-1/2, 1/2]
  y = y * f + 5.550733581e-02f;
  y = y * f + 2.402224243e-01f;
  y = y * f + 6.931470037e-01f;
  y = y * f + 1.0f;
  Bits power, bits;
  std::memcpy(&power, &shifted, sizeof(power));
  std::memcpy(&bits, &y, sizeof(bits));
  bits = (bits + (power << 23)) & ~(x < -87.0f);
  std::memcpy(&y, &bits, sizeof(y));
  return y;
}

inline Vec<double> exp_nonpositive(Vec<double> x) {
  for (int64_t i = 0; i < Simd<double>::lanes; ++i) x[i] = std::exp(x[i]);
  return x;
}

template <class A>
inline A row_max(const A* s, int64_t n) {
  constexpr int64_t L = Simd<A>::lanes;
  Vec<A> a = load(s), b = load(s + L);
  for (int64_t j = 2 * L; j < n; j += 2 * L) {
    const Vec<A> x = load(s + j), y = load(s + j + L);
    a = x > a ? x : a;
    b = y > b ? y : b;
  }
  a = b > a ? b : a;
  A m = a[0];
  for (int64_t l = 1; l < L; ++l) m = std::max(m, A(a[l]));
  return m;
}

// s <- exp(s - shift) * factor; returns the sum. n counts whole panels.
template <class A>
inline A row_exp(A* s, int64_t n, A shift, A factor) {
  constexpr int64_t L = Simd<A>::lanes;
  Vec<A> a = {}, b = {};
  for (int64_t j = 0; j < n; j += 2 * L) {
    const Vec<A> x = exp_nonpositive(load(s + j) - shift) * factor;
    const Vec<A> y = exp_nonpositive(load(s + j + L) - shift) * factor;
    store(s + j, x);
    store(s + j + L, y);
    a += x;
    b += y;
  }
  a += b;
  A sum = a[0];
  for (int64_t l = 1; l < L; ++l) sum += a[l];
  return sum;
}

}  // namespace softnpu::attention::inline CPU_CAPABILITY
