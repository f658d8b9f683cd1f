// Floats to int8 and int4 as the device rounds: to nearest, halves to even, saturating, NaN to 0.
#pragma once

#include <cmath>

#include "vec.h"

namespace softnpu::kernels {

struct Limits {
  float low, high;
};

constexpr Limits kInt8{-128.0f, 127.0f}, kUint8{0.0f, 255.0f}, kInt4{-8.0f, 7.0f};

// Whole numbers within the limits, NaN as 0.
SOFTNPU_INLINE IntVec whole(const Vec& v, const Limits& limits) {
  const Vec bounded = at::vec::clamp_max(at::vec::clamp_min(v, Vec(limits.low)), Vec(limits.high));
#ifdef CPU_CAPABILITY_AVX2
  return _mm256_cvtps_epi32(bounded & (v == v));
#else
  return at::vec::convert_to_int_of_same_size(Vec::blendv(Vec(0.0f), bounded.round(), v == v));
#endif
}

// The low byte of each lane; works for int8 and uint8.
SOFTNPU_INLINE void write_bytes(uint8_t* to, const IntVec& v) {
#ifdef CPU_CAPABILITY_AVX2
  const __m256i pick = _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8, 12, -1,
                                        -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
  const __m256i bytes = _mm256_shuffle_epi8(v, pick);
  const int32_t a = _mm_cvtsi128_si32(_mm256_castsi256_si128(bytes));
  const int32_t b = _mm_cvtsi128_si32(_mm256_extracti128_si256(bytes, 1));
  std::memcpy(to, &a, 4);
  std::memcpy(to + 4, &b, 4);
#else
  int32_t lanes[kLanes];
  v.store(lanes);
  for (int64_t i = 0; i < kLanes; ++i) to[i] = static_cast<uint8_t>(lanes[i]);
#endif
}

SOFTNPU_INLINE void write_bytes(uint8_t* to, const IntVec& v, Full) { write_bytes(to, v); }

SOFTNPU_INLINE void write_bytes(uint8_t* to, const IntVec& v, int64_t count) {
  uint8_t padded[kLanes];
  write_bytes(padded, v);
  std::memcpy(to, padded, count);
}

// n values f(i, count) as bytes, or as int4: two to a byte, the first in the low half (n is then a multiple of 8).
template <class F>
SOFTNPU_INLINE void quantise_row(uint8_t* to, int64_t n, bool int4, const Limits& limits, const F& f) {
  if (!int4) {
    sweep(n, [&](int64_t i, auto count) { write_bytes(to + i, whole(f(i, count), limits), count); });
    return;
  }
  sweep(n, [&](int64_t i, auto count) {
    uint8_t bytes[kLanes];
    write_bytes(bytes, whole(f(i, count), limits));
    for (int64_t k = 0; k + 1 < count; k += 2) to[(i + k) / 2] = (bytes[k] & 0xF) | (bytes[k + 1] << 4);
  });
}

#ifdef CPU_CAPABILITY_AVX2

// The int8 values of x / divisor for the blocks of 32 elements of a row; returns how many elements that were. A
// product with 1 / divisor is 2^-15 at most from the quotient (|x / divisor| <= 128), so it rounds alike but for
// those near a half: a block that has one is divided.
template <class T>
SOFTNPU_INLINE int64_t quantise_blocks(uint8_t* to, const T* x, int64_t n, float divisor) {
  const Vec factor(1.0f / divisor), near(0.5f - 0x1p-15f);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    Vec q[4];
    Vec doubt(0.0f);
    for (int k = 0; k < 4; ++k) {
      const Vec product = read(x + i + 8 * k) * factor;
      q[k] = product.round();
      doubt = doubt | ((product - q[k]).abs() > near);
    }
    if (_mm256_movemask_ps(doubt) != 0) [[unlikely]] {
      for (int k = 0; k < 4; ++k) q[k] = read(x + i + 8 * k) / Vec(divisor);
    }
    const __m256i low = _mm256_packs_epi32(_mm256_cvtps_epi32(q[0]), _mm256_cvtps_epi32(q[1]));
    const __m256i high = _mm256_packs_epi32(_mm256_cvtps_epi32(q[2]), _mm256_cvtps_epi32(q[3]));
    const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), bytes);
  }
  return i;
}

#else

template <class T>
SOFTNPU_INLINE int64_t quantise_blocks(uint8_t*, const T*, int64_t, float) {
  return 0;
}

#endif

// The largest |x| of a row, NaN if one is. Without its sign a float's bits are in its order, NaN above all.
template <class T>
SOFTNPU_INLINE float largest_magnitude(const T* x, int64_t n) {
  int64_t i = 0;
  float top = 0.0f;
#ifdef CPU_CAPABILITY_AVX2
  if constexpr (sizeof(T) == 2) {
    const __m256i clear = _mm256_set1_epi16(0x7FFF);
    __m256i a = _mm256_setzero_si256(), b = a;
    for (; i + 32 <= n; i += 32) {
      const auto* at = reinterpret_cast<const __m256i*>(x + i);
      a = _mm256_max_epu16(a, _mm256_and_si256(_mm256_loadu_si256(at), clear));
      b = _mm256_max_epu16(b, _mm256_and_si256(_mm256_loadu_si256(at + 1), clear));
    }
    uint16_t lanes[16], most = 0;
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes), _mm256_max_epu16(a, b));
    for (const uint16_t lane : lanes) most = std::max(most, lane);
    T value;
    std::memcpy(&value, &most, sizeof(value));
    top = static_cast<float>(value);
  }
#endif
  const float rest = row_max(n - i, [&](int64_t k, auto c) { return read(x + i + k, c).abs(); }, 0.0f);
  return std::isnan(top) || std::isnan(rest) ? std::numeric_limits<float>::quiet_NaN() : std::max(top, rest);
}

}  // namespace softnpu::kernels
