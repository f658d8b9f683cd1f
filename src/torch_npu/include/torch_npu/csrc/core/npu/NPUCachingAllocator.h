// The caching allocator: raw memory, its cache, streams that use a block.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include "torch_npu/csrc/core/npu/NPUStream.h"

namespace c10_npu::NPUCachingAllocator {

inline c10::Allocator* get() { return c10::GetAllocator(c10::DeviceType::PrivateUse1); }
inline c10::DeviceAllocator* device_allocator() { return c10::getDeviceAllocator(c10::DeviceType::PrivateUse1); }

inline void* raw_alloc(size_t size) { return softnpu_headers::allocate(size); }
inline void* raw_alloc_with_stream(size_t size, aclrtStream stream) {
  const auto guard = softnpu_headers::guard();
  const c10::Stream before = guard.exchangeStream(softnpu_headers::stream_of(stream));
  void* made = nullptr;
  try {
    made = raw_alloc(size);
  } catch (...) {
    guard.exchangeStream(before);
    throw;
  }
  guard.exchangeStream(before);
  return made;
}
inline void raw_delete(void* pointer) {
  TORCH_CHECK(pointer == nullptr || softnpu_headers::release(pointer), "raw_delete: expected what raw_alloc returned");
}
inline void emptyCache(bool /*check_error*/ = true) { device_allocator()->emptyCache(); }
inline void recordStream(const c10::DataPtr& pointer, NPUStream stream) {
  device_allocator()->recordStream(pointer, stream.unwrap());
}

}  // namespace c10_npu::NPUCachingAllocator
