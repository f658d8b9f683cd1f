// Floats to int8 and int4 as the device rounds: to nearest, halves to even, saturating, NaN to 0.
#pragma once

#include <cmath>

#include "vec.h"

namespace softnpu::kernels::inline CPU_CAPABILITY {

struct Limits {
  float low, high;
};

constexpr Limits kInt8{-128.0f, 127.0f}, kUint8{0.0f, 255.0f}, kInt4{-8.0f, 7.0f};

// Whole numbers within the limits, NaN as 0.
SOFTNPU_INLINE IntVec whole(const Vec& v, const Limits& limits) {
  const Vec bounded = at::vec::clamp_max(at::vec::clamp_min(v, Vec(limits.low)), Vec(limits.high));
  return nearest(bounded & (v == v));
}

// The low byte of each lane; works for int8 and uint8.
SOFTNPU_INLINE void write_bytes(uint8_t* to, const IntVec& v) { low_bytes(to, v); }

SOFTNPU_INLINE void write_bytes(uint8_t* to, const IntVec& v, Full) { write_bytes(to, v); }

SOFTNPU_INLINE void write_bytes(uint8_t* to, const IntVec& v, int64_t count) {
  uint8_t padded[kLanes];
  write_bytes(padded, v);
  std::memcpy(to, padded, count);
}

// n values f(i, count) as bytes, or as int4: two to a byte, the first in the low half (n is then a multiple of 8).
template <class F>
SOFTNPU_INLINE void quantize_row(uint8_t* to, int64_t n, bool int4, const Limits& limits, const F& f) {
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

constexpr int64_t kPacked = 4 * kLanes;  // elements whose bytes are written together

// The int8 values of x * factor for the whole blocks of a row, none of them NaN or beyond 2^31; returns how many
// elements that were.
template <class T>
SOFTNPU_INLINE int64_t multiply_blocks(uint8_t* to, const T* x, int64_t n, float factor) {
  int64_t i = 0;
  if constexpr (kHasPacking) {
    for (; i + kPacked <= n; i += kPacked) {
      Vec q[4];
      for (int k = 0; k < 4; ++k) q[k] = read(x + i + kLanes * k) * Vec(factor);
      pack_bytes(to + i, q);
    }
  }
  return i;
}

// The int8 values of x / divisor for the whole blocks of a row; returns how many elements that were. A product with
// 1 / divisor is 2^-15 at most from the quotient (|x / divisor| <= 128), so it rounds alike but for those near a half:
// a block that has one is divided.
template <class T>
SOFTNPU_INLINE int64_t quantize_blocks(uint8_t* to, const T* x, int64_t n, float divisor) {
  int64_t i = 0;
  if constexpr (kHasPacking) {
    const Vec factor(1.0f / divisor), near(0.5f - 0x1p-15f);
    for (; i + kPacked <= n; i += kPacked) {
      Vec q[4];
      Vec doubt(0.0f);
      for (int k = 0; k < 4; ++k) {
        const Vec product = read(x + i + kLanes * k) * factor;
        q[k] = product.round();
        doubt = doubt | ((product - q[k]).abs() > near);
      }
      if (any(doubt)) [[unlikely]] {
        for (int k = 0; k < 4; ++k) q[k] = read(x + i + kLanes * k) / Vec(divisor);
      }
      pack_bytes(to + i, q);
    }
  }
  return i;
}

// The largest |x| of a row, NaN if one is. Without its sign a float's bits are in its order, NaN above all.
template <class T>
SOFTNPU_INLINE float largest_magnitude(const T* x, int64_t n) {
  int64_t i = 0;
  float top = 0.0f;
  if constexpr (kHasPacking && sizeof(T) == 2) {
    i = n - n % kPacked;
    const uint16_t most = largest_word(x, i);
    T value;
    std::memcpy(&value, &most, sizeof(value));
    top = static_cast<float>(value);
  }
  const float rest = row_max(n - i, [&](int64_t k, auto c) { return read(x + i + k, c).abs(); }, 0.0f);
  return std::isnan(top) || std::isnan(rest) ? std::numeric_limits<float>::quiet_NaN() : std::max(top, rest);
}

}  // namespace softnpu::kernels::inline CPU_CAPABILITY
