// The order of floats and of what stands in a row: larger values first, of equal ones the first; NaN is the largest.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

namespace softnpu::kernels::inline CPU_CAPABILITY {

// Unsigned integers in the order of the floats: both zeros are equal, NaN is the largest.
inline uint32_t key_of(float value) {
  if (std::isnan(value)) return ~0u;
  value += 0.0f;  // -0 becomes 0
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Larger values first, of equal ones the smaller index: the largest of these is the best.
inline uint64_t rank(float value, int64_t index) {
  return static_cast<uint64_t>(key_of(value)) << 32 | static_cast<uint32_t>(~static_cast<uint32_t>(index));
}

// The index in a rank.
inline uint32_t index_of(uint64_t rank) { return static_cast<uint32_t>(~static_cast<uint32_t>(rank)); }

// The k best of n values, as ranks, best first; k is at most n.
inline void select_best(const float* x, int64_t n, int64_t k, std::vector<uint64_t>& ranks) {
  ranks.resize(n);
  for (int64_t i = 0; i < n; ++i) ranks[i] = rank(x[i], i);
  if (k < n) std::nth_element(ranks.begin(), ranks.begin() + k, ranks.end(), std::greater<>());
  std::sort(ranks.begin(), ranks.begin() + k, std::greater<>());
}

}  // namespace softnpu::kernels::inline CPU_CAPABILITY
