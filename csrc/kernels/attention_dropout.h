// The dropout of attention: Philox4x32-10, so that what is kept depends on (seed, offset) and the position alone.
#pragma once
#include <algorithm>
#include <cstdint>

#include "lanes.h"

namespace softnpu::attention::inline CPU_CAPABILITY {

// The round keys of Philox4x32-10, four times each: what one seed needs once.
struct PhiloxKeys {
  alignas(32) uint64_t key[10][2][4];

  explicit PhiloxKeys(uint64_t seed) {
    // Products, not sums from round to round: gcc 12 without AVX2 gets that loop wrong at -O3.
    for (uint32_t r = 0; r < 10; ++r) {
      std::fill_n(key[r][0], 4, static_cast<uint32_t>(seed) + r * 0x9E3779B9u);
      std::fill_n(key[r][1], 4, static_cast<uint32_t>(seed >> 32) + r * 0xBB67AE85u);
    }
  }
};

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
      kernels::philox4(keys.key, offset, static_cast<uint64_t>(at) / 4, words);
      if (at >= first && at + 16 <= first + n) {
        kernels::choose16(words, last, kept, factor + (at - first));
      } else {
        const int64_t low = std::max<int64_t>(0, first - at), high = std::min<int64_t>(16, first + n - at);
        for (int64_t w = low; w < high; ++w) factor[at + w - first] = words[w] <= last ? kept : A(0);
      }
    }
  }
};

}  // namespace softnpu::attention::inline CPU_CAPABILITY
