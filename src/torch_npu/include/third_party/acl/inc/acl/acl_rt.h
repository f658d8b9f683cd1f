// CANN's runtime calls that extensions make, on the emulated device: inline, so that there is nothing to link.
#pragma once

#include <ATen/DeviceAccelerator.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstring>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "acl/acl_base.h"

enum aclrtMemcpyKind {
  ACL_MEMCPY_HOST_TO_HOST,
  ACL_MEMCPY_HOST_TO_DEVICE,
  ACL_MEMCPY_DEVICE_TO_HOST,
  ACL_MEMCPY_DEVICE_TO_DEVICE,
  ACL_MEMCPY_DEFAULT,
};

enum aclrtMemMallocPolicy {
  ACL_MEM_MALLOC_HUGE_FIRST,
  ACL_MEM_MALLOC_HUGE_ONLY,
  ACL_MEM_MALLOC_NORMAL_ONLY,
};

namespace softnpu_headers {

inline c10::impl::VirtualGuardImpl guard() { return c10::impl::VirtualGuardImpl(c10::DeviceType::PrivateUse1); }

// A handle is the stream's number plus one, as torch.npu.Stream.npu_stream has it; null is the default stream.
inline c10::Stream stream_of(aclrtStream handle) {
  const auto impl = guard();
  const c10::Device device = impl.getDevice();
  if (handle == nullptr) return impl.getDefaultStream(device);
  const auto number = static_cast<c10::StreamId>(reinterpret_cast<intptr_t>(handle) - 1);
  return c10::Stream(c10::Stream::UNSAFE, device, number);
}

// Raw memory of the current device and stream, until `release`.
struct RawMemory {
  std::mutex lock;
  std::unordered_map<void*, c10::DataPtr> held;
};

inline RawMemory& raw_memory() {
  static auto* memory = new RawMemory;  // outlives static objects that free theirs
  return *memory;
}

inline void* allocate(size_t size) {
  c10::DataPtr made = c10::GetAllocator(c10::DeviceType::PrivateUse1)->allocate(size);
  void* address = made.get();
  RawMemory& memory = raw_memory();
  const std::lock_guard<std::mutex> guard(memory.lock);
  memory.held[address] = std::move(made);
  return address;
}

// Whether there was such memory.
inline bool release(void* address) {
  RawMemory& memory = raw_memory();
  const std::lock_guard<std::mutex> guard(memory.lock);
  return memory.held.erase(address) != 0;
}

}  // namespace softnpu_headers

inline aclError aclrtGetDeviceCount(uint32_t* count) {
  if (count == nullptr) return ACL_ERROR_INVALID_PARAM;
  *count = static_cast<uint32_t>(softnpu_headers::guard().deviceCount());
  return ACL_SUCCESS;
}

inline aclError aclrtSetDevice(int32_t device) {
  const auto impl = softnpu_headers::guard();
  if (device < 0 || device >= impl.deviceCount()) return ACL_ERROR_RT_INVALID_DEVICEID;
  impl.setDevice({c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(device)});
  return ACL_SUCCESS;
}

inline aclError aclrtGetDevice(int32_t* device) {
  if (device == nullptr) return ACL_ERROR_INVALID_PARAM;
  *device = softnpu_headers::guard().getDevice().index();
  return ACL_SUCCESS;
}

inline aclError aclrtSynchronizeStream(aclrtStream stream) {
  softnpu_headers::stream_of(stream).synchronize();
  return ACL_SUCCESS;
}

inline aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t /*timeout*/) {
  return aclrtSynchronizeStream(stream);
}

inline aclError aclrtSynchronizeDevice() {
  const auto impl = softnpu_headers::guard();
  impl.synchronizeDevice(impl.getDevice().index());
  return ACL_SUCCESS;
}

inline aclError aclrtMalloc(void** pointer, size_t size, aclrtMemMallocPolicy /*policy*/) {
  if (pointer == nullptr || size == 0) return ACL_ERROR_RT_PARAM_INVALID;
  try {
    *pointer = softnpu_headers::allocate(size);
  } catch (const c10::OutOfMemoryError&) {
    *pointer = nullptr;
    return ACL_ERROR_RT_MEMORY_ALLOCATION;
  }
  return ACL_SUCCESS;
}

inline aclError aclrtFree(void* pointer) {
  if (pointer == nullptr) return ACL_ERROR_RT_PARAM_INVALID;
  return softnpu_headers::release(pointer) ? ACL_SUCCESS : ACL_ERROR_RT_MEMORY_FREE;
}

// Device memory is memory of the host, and work runs at launch: a copy waits for the device and is a copy.
inline aclError aclrtMemcpy(void* to, size_t room, const void* from, size_t size, aclrtMemcpyKind /*kind*/) {
  if (size > room || (size != 0 && (to == nullptr || from == nullptr))) return ACL_ERROR_RT_PARAM_INVALID;
  aclrtSynchronizeDevice();
  if (size != 0) std::memmove(to, from, size);
  return ACL_SUCCESS;
}

inline aclError aclrtMemcpyAsync(void* to, size_t room, const void* from, size_t size, aclrtMemcpyKind kind,
                                 aclrtStream stream) {
  aclrtSynchronizeStream(stream);
  return aclrtMemcpy(to, room, from, size, kind);
}

inline aclError aclrtMemset(void* to, size_t room, int32_t value, size_t size) {
  if (size > room || (size != 0 && to == nullptr)) return ACL_ERROR_RT_PARAM_INVALID;
  aclrtSynchronizeDevice();
  if (size != 0) std::memset(to, value, size);
  return ACL_SUCCESS;
}
