// The three allocators: device memory, pinned host memory, and the CPU allocator while a kernel runs.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <set>
#include <vector>

#include "device/memory.h"
#include "torch/compat.h"

namespace softnpu {

compat::DeviceAllocator* npu_allocator();
void install_allocators();  // makes them PyTorch's, once

// Bytes of a device, owned by the DataPtr, which says it lives on `as` (npu:i, or cpu inside a kernel).
c10::DataPtr allocate_on(int device, size_t bytes, c10::Device as);

// The block behind a DataPtr that allocate_on made, or nullptr.
Block* block_of(const c10::DataPtr& data);

// While one lives, the CPU allocator of this thread draws from the device: a kernel's outputs and temporaries.
class KernelScope {
 public:
  explicit KernelScope(int device) noexcept;
  ~KernelScope();
  KernelScope(const KernelScope&) = delete;
  static int device() noexcept;  // -1 outside

 private:
  int before_, before_device_;
};

// While one lives inside a kernel, the CPU allocator of this thread draws from the host again.
class HostScope {
 public:
  HostScope() noexcept;
  ~HostScope();
  HostScope(const HostScope&) = delete;

 private:
  int before_;
};

// What a kernel allocated, in order. A recorded call is given the same addresses again when it is replayed.
struct Allocation {
  void* at;
  size_t bytes;
};
using Allocations = std::vector<Allocation>;

class LogAllocations {  // of this thread's kernels, while it lives
 public:
  explicit LogAllocations(Allocations& to);
  ~LogAllocations();
  LogAllocations(const LogAllocations&) = delete;

 private:
  Allocations* before_;
};

// What a kernel allocates of the host's memory and frees, in order: `freed` is the number of an allocation, or -1.
struct HostStep {
  size_t bytes;
  int64_t freed;
};
using HostSteps = std::vector<HostStep>;

class LearnHostSteps {  // of this process's threads, while it lives; `made`: the address of each allocation
 public:
  LearnHostSteps(HostSteps& to, std::vector<const void*>& made);
  ~LearnHostSteps();
  LearnHostSteps(const LearnHostSteps&) = delete;
};

// While it lives, memory that a kernel allocates outside of a logged call is taken out of the set: it is new.
class NoticeFresh {
 public:
  explicit NoticeFresh(std::set<const void*>& written);
  ~NoticeFresh();
  NoticeFresh(const NoticeFresh&) = delete;
};

class ServeAllocations {
 public:
  explicit ServeAllocations(const Allocations& from);
  ~ServeAllocations();
  ServeAllocations(const ServeAllocations&) = delete;

 private:
  const Allocations* before_;
  size_t before_next_;
};

bool is_pinned(const void* address);
std::pair<const void*, size_t> pinned_block(const void* address);  // that holds it, or nullptr

// Requests that found no memory while counting was on (throw_on_npumalloc_oom), since the last reset.
void count_rejections(bool on);
int64_t rejections(int device);
void reset_rejections(int device);

// Pinned blocks beyond the first size are not rounded to a power of two, beyond the second not kept when freed.
void configure_pinned(size_t round_threshold, size_t cached_limit);

}  // namespace softnpu
