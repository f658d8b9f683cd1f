// The dropout of attention: Philox4x32-10, so that what is kept depends on (seed, offset) and the position alone.
#pragma once
#include <algorithm>
#include <cstdint>
#include <type_traits>
#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace softnpu::attention {

// The round keys of Philox4x32-10, four times each: what one seed needs once.
struct PhiloxKeys {
  alignas(32) uint64_t key[10][2][4];

  explicit PhiloxKeys(uint64_t seed) {
    uint32_t a = static_cast<uint32_t>(seed), b = static_cast<uint32_t>(seed >> 32);
    for (auto& round : key) {
      std::fill_n(round[0], 4, a);
      std::fill_n(round[1], 4, b);
      a += 0x9E3779B9;
      b += 0xBB67AE85;
    }
  }
};

// Philox4x32-10 for four consecutive counters: sixteen words.
inline void philox(const PhiloxKeys& keys, uint64_t offset, uint64_t counter, uint32_t* words) {
  constexpr uint32_t m0 = 0xD2511F53, m1 = 0xCD9E8D57;
#ifdef __AVX2__
  const auto c = _mm256_setr_epi64x(counter, counter + 1, counter + 2, counter + 3);
  const auto f0 = _mm256_set1_epi64x(m0), f1 = _mm256_set1_epi64x(m1);
  auto x0 = c, x1 = _mm256_srli_epi64(c, 32);
  auto x2 = _mm256_set1_epi64x(static_cast<uint32_t>(offset)), x3 = _mm256_set1_epi64x(offset >> 32);
  for (const auto& round : keys.key) {
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
    for (const auto& round : keys.key) {
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
inline void choose(const uint32_t* words, uint32_t last, A kept, A* factor) {
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

struct Dropout {
  uint64_t seed = 0, offset = 0, limit = 0;  // a position is kept if its word is below the limit
  const uint8_t* bits = nullptr;             // or if its bit is set
  double inverse = 1;                        // 1 / keep_prob
  bool active = false;

  // factor[i] = keep(first + i) ? 1 / keep_prob : 0
  template <class A>
  void factors(int64_t first, int64_t n, A* factor) const {
    const A kept = static_cast<A>(inverse);
    if (bits != nullptr) {
      for (int64_t i = 0; i < n; ++i) {
        const int64_t at = first + i;
        factor[i] = (bits[at >> 3] >> (at & 7)) & 1 ? kept : A(0);
      }
      return;
    }
    if (limit == 0) {
      std::fill_n(factor, n, A(0));
      return;
    }
    const uint32_t last = static_cast<uint32_t>(limit - 1);
    const PhiloxKeys keys(seed);
    uint32_t words[16];
    for (int64_t at = first & ~int64_t(15); at < first + n; at += 16) {
      philox(keys, offset, static_cast<uint64_t>(at) / 4, words);
      if (at >= first && at + 16 <= first + n) {
        choose(words, last, kept, factor + (at - first));
      } else {
        const int64_t low = std::max<int64_t>(0, first - at), high = std::min<int64_t>(16, first + n - at);
        for (int64_t w = low; w < high; ++w) factor[at + w - first] = words[w] <= last ? kept : A(0);
      }
    }
  }
};

}  // namespace softnpu::attention
