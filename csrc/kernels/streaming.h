// Stores past the caches, for results that are too large to be found there again: a processor need not read the
// memory that it overwrites as a whole. Beside lanes.h the only header with instructions of a processor.
#pragma once

#include "lanes.h"

namespace softnpu::kernels::inline CPU_CAPABILITY {

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
