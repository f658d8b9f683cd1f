// Microscaling quantization: blocks of an axis in 8-bit or 4-bit floats with a power of two as their scale.
//
//   softnpu::mx_quant(Tensor x, int axis, int block, int format, int mode, int algorithm, int carry, float inverse,
//                     float least, int coarse) -> (Tensor y, Tensor scale)
//
// The formula is torch_npu/ops/quant/_mx.py, and the bytes are the same. format: 0 e4m3, 1 e5m2, 2 e2m1, 3 e1m2; mode:
// 0 to nearest even, 1 down, 2 halves away from zero (4 bits); algorithm 0, 1 and 2 as there: `carry` are the bits that
// algorithm 2 adds to a bfloat16 magnitude (negative: it divides, as algorithm 1 does), `inverse` what 1 multiplies by,
// `least` the least magnitude; coarse: 0, or 1 and 2 for magnitudes of float16 and float32 brought to bfloat16 before.
// y is uint8, two values a byte for 4 bits; scale has the pairs of blocks in place of the axis, and a last dimension
// of 2.
#include <ATen/ops/zeros.h>

#include <bit>

#include "vec.h"

namespace softnpu::kernels::inline CPU_CAPABILITY {
namespace {

using at::Tensor;

enum Format { kE4M3, kE5M2, kE2M1, kE1M2 };
enum Mode { kNearest, kDown, kAway };
enum Coarse { kFine, kFromHalf, kFromFloat };

constexpr int32_t kEmax[] = {8, 15, 2, 0};
constexpr float kGrid[2][8] = {{0, 0.5, 1, 1.5, 2, 3, 4, 6}, {0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75}};
constexpr uint32_t kMagnitude = 0x7FFFFFFF, kInfinity = 0x7F800000;

SOFTNPU_INLINE uint32_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }
SOFTNPU_INLINE float value_of(uint32_t bits) { return std::bit_cast<float>(bits); }

struct Rule {
  Format format;
  Mode mode;
  int64_t algorithm, carry;
  float inverse, least;
  Coarse coarse;
  // A magnitude's code is the number of thresholds that its bits reach; below zero they differ for rounding down.
  uint32_t up[2][7];

  void set_thresholds() {
    if (format < kE2M1) return;
    const float* grid = kGrid[format - kE2M1];
    for (int i = 0; i < 7; ++i) {
      const uint32_t middle = bits_of((grid[i] + grid[i + 1]) / 2);
      const uint32_t exact = bits_of(grid[i + 1]), above = bits_of(grid[i]) + 1;
      up[0][i] = mode == kDown ? exact : mode == kAway || i % 2 == 1 ? middle : middle + 1;
      up[1][i] = mode == kDown ? above : up[0][i];
    }
  }
};

// The scale's byte and what to multiply by, for the bits of a block's largest magnitude.
struct Scale {
  uint8_t byte;
  float factor;
};

Scale scale_of(uint32_t top, const Rule& rule) {
  if (top >= kInfinity) return {255, std::numeric_limits<float>::quiet_NaN()};
  const int32_t emax = kEmax[rule.format];
  if (rule.algorithm == 0 || (rule.algorithm == 2 && rule.carry >= 0)) {
    uint32_t bits = top;
    if (rule.algorithm == 2) {
      uint32_t fine = static_cast<uint32_t>(rule.carry) << 16 | 0xFFFF;
      if (rule.coarse == kFromHalf) {
        bits = (bits + 0x7FFF + (bits >> 16 & 1)) & ~0xFFFFu;
        fine &= ~0xFFFFu;
      } else if (rule.coarse == kFromFloat) {
        bits &= ~0xFFFFu;
        fine &= ~0xFFFFu;
      }
      bits = static_cast<int32_t>(bits >> 23) < emax ? 0 : bits + fine;
    }
    const int32_t byte = std::max<int32_t>(0, static_cast<int32_t>(bits >> 23) - emax);
    if (byte == 0) return {0, 0.0f};
    return {static_cast<uint8_t>(byte), value_of(byte == 254 ? 1u << 22 : static_cast<uint32_t>(254 - byte) << 23)};
  }
  if (top == 0) return {0, 0.0f};
  const uint32_t quotient = bits_of(std::max(value_of(top), rule.least) * rule.inverse);
  uint32_t byte = quotient >> 23;
  const uint32_t mantissa = quotient & 0x7FFFFF;
  const bool eight = rule.format < kE2M1;
  byte += (byte > 0 && byte < 254 && mantissa > 0) || (eight && byte == 0 && mantissa > 1u << 22);
  return {static_cast<uint8_t>(byte), value_of((254 - byte) << 23)};
}

// All bits where the condition holds: masks instead of branches, so that loops are vectorized.
SOFTNPU_INLINE int32_t mask(bool condition) { return -static_cast<int32_t>(condition); }

// 8 bits: to nearest even, saturating; NaN gives 0. kBits are those of the mantissa, kBias the exponent's.
template <int kBits, int kBias>
SOFTNPU_INLINE int32_t encode8(float value, int32_t largest) {
  constexpr int kDrop = 23 - kBits;
  constexpr int32_t kLeast = (128 - kBias) << 23;                  // smallest normal
  constexpr int32_t kStep = (127 + 23 + 1 - kBias - kBits) << 23;  // its unit is a subnormal's
  const int32_t bits = std::bit_cast<int32_t>(value), magnitude = bits & 0x7FFFFFFF;
  const int32_t inside = std::min(magnitude, largest);
  const int32_t normal =
      ((inside + ((1 << (kDrop - 1)) - 1) + (inside >> kDrop & 1)) >> kDrop) - ((127 - kBias) << kBits);
  const int32_t small = std::bit_cast<int32_t>(std::bit_cast<float>(inside) + std::bit_cast<float>(kStep)) - kStep;
  const int32_t tiny = mask(inside < kLeast), none = mask(magnitude > static_cast<int32_t>(kInfinity));
  return ((normal & ~tiny) | (small & tiny) | ((bits >> 31 & 1) << 7)) & ~none;
}

template <bool kBySign>
SOFTNPU_INLINE int32_t encode4(float value, const uint32_t (&up)[2][7]) {
  const int32_t bits = std::bit_cast<int32_t>(value), magnitude = bits & 0x7FFFFFFF;
  int32_t code = 0, below = 0;
  for (int i = 0; i < 7; ++i) {
    code -= mask(magnitude >= static_cast<int32_t>(up[0][i]));
    if constexpr (kBySign) below -= mask(magnitude >= static_cast<int32_t>(up[1][i]));
  }
  if constexpr (kBySign) code = (code & ~(bits >> 31)) | (below & bits >> 31);
  return (code | ((bits >> 31 & 1) << 3)) & ~mask(magnitude > static_cast<int32_t>(kInfinity));
}

constexpr int64_t kChunk = 1024;  // elements at a time, in the first cache

// Encodes n values times their factors; n is at most a chunk, and even for 4 bits.
SOFTNPU_WALK void encode(uint8_t* to, const float* x, const float* factor, int64_t n, const Rule& rule) {
  alignas(64) int32_t codes[kChunk];
  switch (rule.format) {
    case kE4M3:
      for (int64_t i = 0; i < n; ++i) codes[i] = encode8<3, 7>(x[i] * factor[i], std::bit_cast<int32_t>(448.0f));
      break;
    case kE5M2:
      for (int64_t i = 0; i < n; ++i) codes[i] = encode8<2, 15>(x[i] * factor[i], std::bit_cast<int32_t>(57344.0f));
      break;
    default:
      if (rule.mode == kDown) {
        for (int64_t i = 0; i < n; ++i) codes[i] = encode4<true>(x[i] * factor[i], rule.up);
      } else {
        for (int64_t i = 0; i < n; ++i) codes[i] = encode4<false>(x[i] * factor[i], rule.up);
      }
  }
  if (rule.format < kE2M1) {
    for (int64_t i = 0; i < n; ++i) to[i] = static_cast<uint8_t>(codes[i]);
  } else {
    for (int64_t i = 0; i < n / 2; ++i) to[i] = static_cast<uint8_t>(codes[2 * i] | codes[2 * i + 1] << 4);
  }
}

template <class T>
SOFTNPU_INLINE void widen(float* to, const T* from, int64_t n) {
  sweep(n, [&](int64_t i, auto c) { write(to + i, read(from + i, c), c); });
}

SOFTNPU_INLINE void raise(uint32_t* top, const float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) top[i] = std::max(top[i], bits_of(x[i]) & kMagnitude);
}

SOFTNPU_INLINE uint32_t largest_of(const float* x, int64_t n) {
  uint32_t top = 0;
  for (int64_t i = 0; i < n; ++i) top = std::max(top, bits_of(x[i]) & kMagnitude);
  return top;
}

// Blocks within rows: x is (rows, n), scale (rows, 2 * pairs). As many whole blocks at a time as a chunk holds.
template <class T>
SOFTNPU_WALK void quantize_row(const T* x, uint8_t* y, uint8_t* scale, int64_t n, int64_t block, const Rule& rule) {
  alignas(64) float wide[kChunk], factor[kChunk];
  const int64_t chunk = kChunk / block * block, shift = rule.format < kE2M1 ? 0 : 1;
  for (int64_t begin = 0; begin < n; begin += chunk) {
    const int64_t count = std::min(chunk, n - begin);
    widen(wide, x + begin, count);
    for (int64_t at = 0; at < count; at += block) {
      const int64_t size = std::min(block, count - at);
      const Scale found = scale_of(largest_of(wide + at, size), rule);
      scale[(begin + at) / block] = found.byte;
      std::fill_n(factor + at, size, found.factor);
    }
    encode(y + (begin >> shift), wide, factor, count, rule);
  }
}

// Blocks across rows: x is (n, inner) and one block's rows at a time; y (n, inner), scale (pairs, inner, 2).
template <class T>
SOFTNPU_WALK void quantize_columns(const T* x, uint8_t* y, uint8_t* scale, int64_t n, int64_t inner, int64_t begin,
                                   int64_t end, int64_t b, int64_t block, const Rule& rule) {
  alignas(64) float wide[kChunk], factor[kChunk];
  alignas(64) uint32_t top[kChunk];
  const int64_t first = b * block, last = std::min(n, first + block), shift = rule.format < kE2M1 ? 0 : 1;
  for (int64_t at = begin; at < end; at += kChunk) {
    const int64_t count = std::min(kChunk, end - at);
    std::fill_n(top, count, 0u);
    for (int64_t r = first; r < last; ++r) {
      widen(wide, x + r * inner + at, count);
      raise(top, wide, count);
    }
    uint8_t* bytes = scale + ((b / 2) * inner + at) * 2 + b % 2;
    for (int64_t i = 0; i < count; ++i) {
      const Scale found = scale_of(top[i], rule);
      bytes[2 * i] = found.byte;
      factor[i] = found.factor;
    }
    for (int64_t r = first; r < last; ++r) {
      widen(wide, x + r * inner + at, count);
      encode(y + ((r * inner + at) >> shift), wide, factor, count, rule);
    }
  }
}

std::tuple<Tensor, Tensor> mx_quant(const Tensor& given_x, int64_t axis, int64_t block, int64_t format, int64_t mode,
                                    int64_t algorithm, int64_t carry, double inverse, double least, int64_t coarse) {
  const Guard guard("mx_quant");
  guard.dtype(given_x, "x", {at::kFloat, at::kBFloat16, at::kHalf});
  guard.least_rank(given_x, "x", 1);
  guard.hold(axis >= 0 && axis < given_x.dim(), "axis", "an axis of x", axis);
  guard.hold(block > 0 && block <= kChunk && block % 32 == 0, "block", "a multiple of 32 up to 1024", block);
  guard.hold(format >= 0 && format < 4, "format", "0 to 3", format);
  guard.hold(mode >= 0 && mode < 3, "mode", "0 to 2", mode);
  guard.hold(coarse >= 0 && coarse < 3, "coarse", "0 to 2", coarse);
  guard.hold(carry < 0x80, "carry", "below 128", carry);
  const bool half_bytes = format >= kE2M1;
  guard.hold(!half_bytes || given_x.size(-1) % 2 == 0, "x", "an even last dimension", given_x.sizes());
  Rule rule{static_cast<Format>(format), static_cast<Mode>(mode),     algorithm, carry, static_cast<float>(inverse),
            static_cast<float>(least),   static_cast<Coarse>(coarse), {}};
  rule.set_thresholds();

  const Tensor x = given_x.contiguous();
  at::DimVector shape(x.sizes()), pairs_shape(x.sizes());
  if (half_bytes) shape.back() /= 2;
  const int64_t n = x.size(axis), pairs = (n + 2 * block - 1) / (2 * block);
  pairs_shape[axis] = pairs;
  pairs_shape.push_back(2);
  Tensor y = at::empty(shape, x.options().dtype(at::kByte)), scale = at::zeros(pairs_shape, y.options());
  if (x.numel() == 0) return {y, scale};
  uint8_t *to = y.data_ptr<uint8_t>(), *bytes = scale.data_ptr<uint8_t>();
  int64_t outer = 1, inner = 1;
  for (int64_t d = 0; d < axis; ++d) outer *= x.size(d);
  for (int64_t d = axis + 1; d < x.dim(); ++d) inner *= x.size(d);
  const int64_t shift = half_bytes ? 1 : 0;
  typed(x, "mx_quant", [&](auto type) {
    using T = decltype(type);
    const T* from = x.const_data_ptr<T>();
    if (inner == 1) {
      parallel_rows(outer, n, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          quantize_row(from + r * n, to + ((r * n) >> shift), bytes + r * pairs * 2, n, block, rule);
        }
      });
      return;
    }
    const int64_t blocks = (n + block - 1) / block;
    parallel_rows(outer * blocks, block * inner, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const int64_t o = t / blocks, b = t % blocks;
        quantize_columns(from + o * n * inner, to + ((o * n * inner) >> shift), bytes + o * pairs * inner * 2, n, inner,
                         0, inner, b, block, rule);
      }
    });
  });
  return {y, scale};
}

}  // namespace
}  // namespace softnpu::kernels::inline CPU_CAPABILITY

SOFTNPU_SCHEMAS(m) {
  m.def(
      "mx_quant(Tensor x, int axis, int block, int format, int mode, int algorithm, int carry, float inverse, "
      "float least, int coarse) -> (Tensor, Tensor)");
}
SOFTNPU_KERNELS(mx_quant, m) { m.impl("mx_quant", softnpu::kernels::mx_quant); }
