// The one header with instructions of a processor: what the kernels need beyond at::vec, for AVX-512, for AVX2 and in
// plain C++. Everything under csrc/kernels is compiled once for each (capability.h), so all of it lives in an inline
// namespace of the build.
#pragma once

#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace softnpu::kernels::inline CPU_CAPABILITY {

using Vec = at::vec::Vectorized<float>;
using IntVec = at::vec::Vectorized<int32_t>;

// A vector must not cross a call: what works on vectors is inlined whatever the compiler thinks of its size.
#define SOFTNPU_INLINE inline __attribute__((always_inline))

// What walks over a row: a function of its own, into which everything that it calls is inlined.
#define SOFTNPU_WALK __attribute__((flatten, noinline))

constexpr int64_t kLanes = Vec::size();

// Two bf16 vectors at a time, as the numbers in even and those in odd places: cheaper to take apart and to join than
// halves are. The plain build has no such instructions, nor any that pack bytes.
struct Halves {
  Vec even, odd;
};

// Numbers of any type as floats and back, one after the other; overloads below take those with instructions.
template <class T>
SOFTNPU_INLINE Vec widened(const T* from) {
  float wide[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) wide[i] = static_cast<float>(from[i]);
  return Vec::loadu(wide);
}
template <class T>
SOFTNPU_INLINE void narrowed(T* to, const Vec& v) {
  float wide[kLanes];
  v.store(wide);
  for (int64_t i = 0; i < kLanes; ++i) to[i] = static_cast<T>(wide[i]);
}

#if defined(CPU_CAPABILITY_AVX512)

constexpr bool kHasHalves = true, kHasPacking = true;

SOFTNPU_INLINE Vec widened(const c10::BFloat16* from) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
SOFTNPU_INLINE Vec widened(const c10::Half* from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
SOFTNPU_INLINE Vec widened(const int32_t* from) { return _mm512_cvtepi32_ps(_mm512_loadu_si512(from)); }
SOFTNPU_INLINE void narrowed(c10::BFloat16* to, const Vec& v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), at::vec::cvtfp32_bf16(v));
}
SOFTNPU_INLINE void narrowed(c10::Half* to, const Vec& v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), at::vec::cvtfp32_fp16(v));
}

// The value, rounded: keeps the compiler from fusing the product it came from with a following addition.
SOFTNPU_INLINE Vec rounded(Vec v) {
  __m512 bits = v;
  asm("" : "+v"(bits));
  return bits;
}

// Where mask is set, all bits of the lane.
SOFTNPU_INLINE Vec mask_of(const bool* mask) {
  const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(mask)));
  return _mm512_castsi512_ps(_mm512_movm_epi32(_mm512_test_epi32_mask(bytes, bytes)));
}
SOFTNPU_INLINE bool any(const Vec& mask) { return _mm512_movepi32_mask(_mm512_castps_si512(mask)) != 0; }

SOFTNPU_INLINE Halves read_halves(const c10::BFloat16* from) {
  const __m512i bits = _mm512_loadu_si512(from);
  const __m512i odd = _mm512_and_si512(bits, _mm512_set1_epi32(static_cast<int>(0xffff0000)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16)), _mm512_castsi512_ps(odd)};
}
// The bits of a float, rounded to bf16 in their upper half; all ones for NaN.
SOFTNPU_INLINE __m512i upper_half(__m512 v) {
  const __m512i bits = _mm512_castps_si512(v), ones = _mm512_set1_epi32(-1);
  const __m512i last = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(last, _mm512_set1_epi32(0x7fff)));
  return _mm512_mask_mov_epi32(up, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), ones);
}
SOFTNPU_INLINE void write_halves(c10::BFloat16* to, const Halves& v) {
  const __m512i even = _mm512_srli_epi32(upper_half(v.even), 16);
  _mm512_storeu_si512(to, _mm512_mask_blend_epi16(0xaaaaaaaa, even, upper_half(v.odd)));
}

// To nearest, halves to even.
SOFTNPU_INLINE IntVec nearest(const Vec& v) { return _mm512_cvtps_epi32(v); }
// The low byte of each lane.
SOFTNPU_INLINE void low_bytes(uint8_t* to, const IntVec& v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(v));
}
// Four vectors of whole numbers as saturated bytes.
SOFTNPU_INLINE void pack_bytes(uint8_t* to, const Vec (&q)[4]) {
  for (int k = 0; k < 4; ++k) {
    const __m128i bytes = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(q[k]));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + k * kLanes), bytes);
  }
}
// The largest of the low 15 bits of n words, which are a multiple of 64.
SOFTNPU_INLINE uint16_t largest_word(const void* from, int64_t n) {
  const __m512i clear = _mm512_set1_epi16(0x7FFF);
  __m512i a = _mm512_setzero_si512(), b = a;
  for (int64_t i = 0; i < n; i += 4 * kLanes) {
    const auto* at = static_cast<const char*>(from) + i * 2;
    a = _mm512_max_epu16(a, _mm512_and_si512(_mm512_loadu_si512(at), clear));
    b = _mm512_max_epu16(b, _mm512_and_si512(_mm512_loadu_si512(at + 64), clear));
  }
  uint16_t lanes[32];
  _mm512_storeu_si512(lanes, _mm512_max_epu16(a, b));
  return *std::max_element(lanes, lanes + 32);
}

// Products of bf16 in pairs, added in fp32: instructions that not every such processor has. A function marked with
// SOFTNPU_PAIRS may use them, and runs only where the processor was asked.
constexpr bool kHasPairs = true;
#define SOFTNPU_PAIRS __attribute__((target("avx512bf16")))
constexpr int64_t kPairs = 2 * kLanes;

using Pairs = __m512bh;
SOFTNPU_PAIRS SOFTNPU_INLINE Pairs read_pairs(const c10::BFloat16* from) {
  return (__m512bh)_mm512_loadu_si512(from);  // NOLINT: another view of the same register
}
// The first n, zeros behind them.
SOFTNPU_PAIRS SOFTNPU_INLINE Pairs read_pairs(const c10::BFloat16* from, int64_t n) {
  return (__m512bh)_mm512_maskz_loadu_epi16((__mmask32(1) << n) - 1, from);  // NOLINT
}
SOFTNPU_PAIRS SOFTNPU_INLINE Vec add_pairs(const Vec& sum, Pairs a, Pairs b) { return _mm512_dpbf16_ps(sum, a, b); }

#elif defined(CPU_CAPABILITY_AVX2)

constexpr bool kHasHalves = true, kHasPacking = true, kHasPairs = false;

SOFTNPU_INLINE Vec widened(const c10::BFloat16* from) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
SOFTNPU_INLINE Vec widened(const c10::Half* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
SOFTNPU_INLINE Vec widened(const int32_t* from) {
  return _mm256_cvtepi32_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
SOFTNPU_INLINE void narrowed(c10::BFloat16* to, const Vec& v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), at::vec::cvtfp32_bf16(v));
}
SOFTNPU_INLINE void narrowed(c10::Half* to, const Vec& v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), at::vec::cvtfp32_fp16(v));
}

SOFTNPU_INLINE Vec rounded(Vec v) {
  __m256 bits = v;
  asm("" : "+x"(bits));
  return bits;
}

SOFTNPU_INLINE Vec mask_of(const bool* mask) {
  const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(mask)));
  return _mm256_castsi256_ps(_mm256_cmpgt_epi32(bytes, _mm256_setzero_si256()));
}
SOFTNPU_INLINE bool any(const Vec& mask) { return _mm256_movemask_ps(mask) != 0; }

SOFTNPU_INLINE Halves read_halves(const c10::BFloat16* from) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  const __m256i odd = _mm256_and_si256(bits, _mm256_set1_epi32(static_cast<int>(0xffff0000)));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(bits, 16)), _mm256_castsi256_ps(odd)};
}
SOFTNPU_INLINE __m256i upper_half(__m256 v) {
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i last = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(last, _mm256_set1_epi32(0x7fff)));
  return _mm256_or_si256(up, _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q)));
}
SOFTNPU_INLINE void write_halves(c10::BFloat16* to, const Halves& v) {
  const __m256i even = _mm256_srli_epi32(upper_half(v.even), 16);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_blend_epi16(even, upper_half(v.odd), 0xaa));
}

SOFTNPU_INLINE IntVec nearest(const Vec& v) { return _mm256_cvtps_epi32(v); }
SOFTNPU_INLINE void low_bytes(uint8_t* to, const IntVec& v) {
  const __m256i pick = _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8, 12, -1,
                                        -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
  const __m256i bytes = _mm256_shuffle_epi8(v, pick);
  const int32_t a = _mm_cvtsi128_si32(_mm256_castsi256_si128(bytes));
  const int32_t b = _mm_cvtsi128_si32(_mm256_extracti128_si256(bytes, 1));
  std::memcpy(to, &a, 4);
  std::memcpy(to + 4, &b, 4);
}
SOFTNPU_INLINE void pack_bytes(uint8_t* to, const Vec (&q)[4]) {
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i low = _mm256_packs_epi32(_mm256_cvtps_epi32(q[0]), _mm256_cvtps_epi32(q[1]));
  const __m256i high = _mm256_packs_epi32(_mm256_cvtps_epi32(q[2]), _mm256_cvtps_epi32(q[3]));
  const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bytes);
}
SOFTNPU_INLINE uint16_t largest_word(const void* from, int64_t n) {
  const __m256i clear = _mm256_set1_epi16(0x7FFF);
  __m256i a = _mm256_setzero_si256(), b = a;
  for (int64_t i = 0; i < n; i += 4 * kLanes) {
    const auto* at = reinterpret_cast<const __m256i*>(static_cast<const char*>(from) + i * 2);
    a = _mm256_max_epu16(a, _mm256_and_si256(_mm256_loadu_si256(at), clear));
    b = _mm256_max_epu16(b, _mm256_and_si256(_mm256_loadu_si256(at + 1), clear));
  }
  uint16_t lanes[16];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes), _mm256_max_epu16(a, b));
  return *std::max_element(lanes, lanes + 16);
}

#else

constexpr bool kHasHalves = false, kHasPacking = false, kHasPairs = false;

// Names that nobody calls in this build.
Halves read_halves(const c10::BFloat16* from);
void write_halves(c10::BFloat16* to, const Halves& v);
bool any(const Vec& mask);
void pack_bytes(uint8_t* to, const Vec (&q)[4]);
uint16_t largest_word(const void* from, int64_t n);

SOFTNPU_INLINE Vec rounded(Vec v) {
  alignas(64) volatile float kept[kLanes];
  float plain[kLanes];
  v.store(plain);
  for (int64_t i = 0; i < kLanes; ++i) kept[i] = plain[i];
  for (int64_t i = 0; i < kLanes; ++i) plain[i] = kept[i];
  return Vec::loadu(plain);
}

SOFTNPU_INLINE Vec mask_of(const bool* mask) {
  float lanes[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) lanes[i] = mask[i] ? 1.0f : 0.0f;
  return Vec::loadu(lanes) > Vec(0.0f);
}

SOFTNPU_INLINE IntVec nearest(const Vec& v) { return at::vec::convert_to_int_of_same_size(v.round()); }
SOFTNPU_INLINE void low_bytes(uint8_t* to, const IntVec& v) {
  int32_t lanes[kLanes];
  v.store(lanes);
  for (int64_t i = 0; i < kLanes; ++i) to[i] = static_cast<uint8_t>(lanes[i]);
}

#endif

// --- eight numbers, whatever the vectors are ------------------------------------------------------------------------

SOFTNPU_INLINE void widen8(const c10::Half* from, float* to) {
#ifdef __F16C__
  _mm256_storeu_ps(to, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#else
  for (int i = 0; i < 8; ++i) to[i] = static_cast<float>(from[i]);
#endif
}

// Philox4x32-10 for four consecutive counters: sixteen words. `keys` are ten times the two round keys, each four times.
SOFTNPU_INLINE void philox4(const uint64_t (&keys)[10][2][4], uint64_t offset, uint64_t counter, uint32_t* words) {
  constexpr uint32_t m0 = 0xD2511F53, m1 = 0xCD9E8D57;
#ifdef __AVX2__
  const auto c = _mm256_setr_epi64x(counter, counter + 1, counter + 2, counter + 3);
  const auto f0 = _mm256_set1_epi64x(m0), f1 = _mm256_set1_epi64x(m1);
  auto x0 = c, x1 = _mm256_srli_epi64(c, 32);
  auto x2 = _mm256_set1_epi64x(static_cast<uint32_t>(offset)), x3 = _mm256_set1_epi64x(offset >> 32);
  for (const auto& round : keys) {
    const auto k0 = _mm256_load_si256(reinterpret_cast<const __m256i*>(round[0]));
    const auto k1 = _mm256_load_si256(reinterpret_cast<const __m256i*>(round[1]));
    const auto p0 = _mm256_mul_epu32(x0, f0), p1 = _mm256_mul_epu32(x2, f1);
    x0 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p1, 32), x1), k0);
    x2 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p0, 32), x3), k1);
    x1 = p1;
    x3 = p0;
  }
  const auto low = _mm256_set1_epi64x(0xFFFFFFFF);  // each lane holds one counter: words 0 and 1, then 2 and 3
  const auto front = _mm256_or_si256(_mm256_and_si256(x0, low), _mm256_slli_epi64(x1, 32));
  const auto back = _mm256_or_si256(_mm256_and_si256(x2, low), _mm256_slli_epi64(x3, 32));
  const auto even = _mm256_unpacklo_epi64(front, back), odd = _mm256_unpackhi_epi64(front, back);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(words), _mm256_permute2x128_si256(even, odd, 0x20));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(words + 8), _mm256_permute2x128_si256(even, odd, 0x31));
#else
  for (int i = 0; i < 4; ++i) {
    uint32_t x[4] = {static_cast<uint32_t>(counter + i), static_cast<uint32_t>((counter + i) >> 32),
                     static_cast<uint32_t>(offset), static_cast<uint32_t>(offset >> 32)};
    for (const auto& round : keys) {
      const uint64_t p0 = static_cast<uint64_t>(x[0]) * m0, p1 = static_cast<uint64_t>(x[2]) * m1;
      x[0] = static_cast<uint32_t>(p1 >> 32) ^ x[1] ^ static_cast<uint32_t>(round[0][0]);
      x[2] = static_cast<uint32_t>(p0 >> 32) ^ x[3] ^ static_cast<uint32_t>(round[1][0]);
      x[1] = static_cast<uint32_t>(p1);
      x[3] = static_cast<uint32_t>(p0);
    }
    std::copy(x, x + 4, words + 4 * i);
  }
#endif
}

// factor[i] = words[i] <= last ? kept : 0 for sixteen words
template <class A>
SOFTNPU_INLINE void choose16(const uint32_t* words, uint32_t last, A kept, A* factor) {
#ifdef __AVX2__
  if constexpr (std::is_same_v<A, float>) {
    const auto limit = _mm256_set1_epi32(static_cast<int32_t>(last));
    for (int half = 0; half < 16; half += 8) {
      const auto x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words + half));
      const auto below = _mm256_cmpeq_epi32(_mm256_max_epu32(x, limit), limit);
      _mm256_storeu_ps(factor + half, _mm256_and_ps(_mm256_castsi256_ps(below), _mm256_set1_ps(kept)));
    }
    return;
  }
#endif
  for (int w = 0; w < 16; ++w) factor[w] = words[w] <= last ? kept : A(0);
}

// Stores past the caches, for results that are too large to be found there again: a processor need not read the
// memory that it overwrites as a whole.
constexpr int64_t kVectorBytes = kLanes * sizeof(float);

// `to` is a multiple of kVectorBytes. Other threads see the stores after `streamed()`.
#if defined(CPU_CAPABILITY_AVX512)
SOFTNPU_INLINE void stream(char* to, const Vec& v) { _mm512_stream_ps(reinterpret_cast<float*>(to), v); }
SOFTNPU_INLINE void streamed() { _mm_sfence(); }
#elif defined(CPU_CAPABILITY_AVX2)
SOFTNPU_INLINE void stream(char* to, const Vec& v) { _mm256_stream_ps(reinterpret_cast<float*>(to), v); }
SOFTNPU_INLINE void streamed() { _mm_sfence(); }
#else
SOFTNPU_INLINE void stream(char* to, const Vec& v) { v.store(to); }
SOFTNPU_INLINE void streamed() {}
#endif

// Copies bytes past the caches but for what is no whole vector at either end.
SOFTNPU_WALK inline void stream_bytes(char* to, const char* from, int64_t n) {
  const int64_t ahead = std::min<int64_t>(n, -reinterpret_cast<intptr_t>(to) & (kVectorBytes - 1));
  std::memcpy(to, from, ahead);
  int64_t i = ahead;
  for (; i + 4 * kVectorBytes <= n; i += 4 * kVectorBytes) {
    Vec v[4];
    for (int64_t k = 0; k < 4; ++k) v[k] = Vec::loadu(from + i + k * kVectorBytes);
    for (int64_t k = 0; k < 4; ++k) stream(to + i + k * kVectorBytes, v[k]);
  }
  for (; i + kVectorBytes <= n; i += kVectorBytes) stream(to + i, Vec::loadu(from + i));
  std::memcpy(to + i, from + i, n - i);
}

}  // namespace softnpu::kernels::inline CPU_CAPABILITY
