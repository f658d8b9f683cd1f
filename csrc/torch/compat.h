// What differs between versions of torch, 2.7.1 to 2.14. The rest of csrc is written for the newest of them and
// compares no versions. A feature is probed where that can be done; each entry says since when torch has it. A virtual
// function that an older torch does not declare is a new one there, which nobody calls.
#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/cpu/Utils.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>
#include <torch/version.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#define SOFTNPU_TORCH_SINCE(minor) (TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= (minor))

// Since 2.12: torch.accelerator.Graph.
#if __has_include(<ATen/core/GraphImplInterface.h>)
#define SOFTNPU_HAS_ACCELERATOR_GRAPH 1
#include <ATen/core/GraphImplInterface.h>
#else
#define SOFTNPU_HAS_ACCELERATOR_GRAPH 0
#endif

// Since 2.9 in a header of its own: how a tensor's metadata of a backend are saved.
#if __has_include(<torch/csrc/jit/serialization/pickler_helper.h>)
#define SOFTNPU_PICKLER_HEADER <torch/csrc/jit/serialization/pickler_helper.h>
#else
#define SOFTNPU_PICKLER_HEADER <torch/csrc/jit/serialization/pickler.h>
#endif

// Since 2.10: what a device is capable of.
#if __has_include(<c10/core/DeviceCapability.h>)
#include <c10/core/DeviceCapability.h>
#endif

namespace softnpu::compat {

// --- the guard ----------------------------------------------------------------------------------------------------

#if __has_include(<c10/core/DeviceCapability.h>)
using c10::DeviceCapability;
#else
struct DeviceCapability {};
#endif

// Since 2.10.
template <class Guard>
struct WithCapability : Guard {
  virtual DeviceCapability getDeviceCapability(c10::Device) const { return {}; }
};
template <class Guard>
  requires requires(const Guard& guard, c10::Device device) { guard.getDeviceCapability(device); }
struct WithCapability<Guard> : Guard {};

// Since 2.11.
template <class Guard>
struct WithNativeHandle : Guard {
  virtual void* getStreamNativeHandle(const c10::Stream) const { return nullptr; }
};
template <class Guard>
  requires requires(const Guard& guard, c10::Stream stream) { guard.getStreamNativeHandle(stream); }
struct WithNativeHandle<Guard> : Guard {};

using DeviceGuardInterface = WithNativeHandle<WithCapability<c10::impl::DeviceGuardImplInterface>>;

// --- allocators ---------------------------------------------------------------------------------------------------

// Since 2.9: the allocator that torch.accelerator asks.
#if SOFTNPU_TORCH_SINCE(9)
using BasicDeviceAllocator = c10::DeviceAllocator;
using MempoolId = c10::MempoolId_t;
#else
using MempoolId = std::pair<unsigned long long, unsigned long long>;
struct BasicDeviceAllocator : c10::Allocator {
  virtual bool initialized() = 0;
  virtual void emptyCache(MempoolId pool = {0, 0}) = 0;
  virtual void recordStream(const c10::DataPtr& data, c10::Stream stream) = 0;
  virtual c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) = 0;
  virtual void resetAccumulatedStats(c10::DeviceIndex device) = 0;
  virtual void resetPeakStats(c10::DeviceIndex device) = 0;
};
#endif

// Since 2.10: free and total memory.
template <class Allocator>
struct WithMemoryInfo : Allocator {
  virtual std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex) = 0;
};
template <class Allocator>
  requires requires(Allocator& allocator) { allocator.getMemoryInfo(0); }
struct WithMemoryInfo<Allocator> : Allocator {};

using DeviceAllocator = WithMemoryInfo<BasicDeviceAllocator>;

// Since 2.8: one interface of the allocators of pinned memory, and their registration.
#if SOFTNPU_TORCH_SINCE(8)
using at::HostAllocator;
inline void set_host_allocator(HostAllocator* allocator) { at::setHostAllocator(c10::kPrivateUse1, allocator); }
inline HostAllocator* host_allocator() { return at::getHostAllocator(c10::kPrivateUse1); }
#else
struct HostAllocator : c10::Allocator {
  virtual bool record_event(void* data, void* context, c10::Stream stream) = 0;
  virtual void empty_cache() = 0;
  virtual at::HostStats get_stats() = 0;
  virtual void reset_accumulated_stats() = 0;
  virtual void reset_peak_stats() = 0;
};
inline HostAllocator* the_host_allocator = nullptr;
inline void set_host_allocator(HostAllocator* allocator) { the_host_allocator = allocator; }
inline HostAllocator* host_allocator() { return the_host_allocator; }
#endif

// Since 2.10 under these names: blocks that exist, and those of them that are in use.
struct HostCounts {
  at::Stat &allocations, &allocated_bytes, &active_requests, &active_bytes;
};
template <class Stats>
HostCounts counts_of(Stats& stats) {
  if constexpr (requires { stats.active_requests; }) {
    return {stats.allocations, stats.allocated_bytes, stats.active_requests, stats.active_bytes};
  } else {
    return {stats.segment, stats.reserved_bytes, stats.allocation, stats.allocated_bytes};
  }
}

// --- operators ----------------------------------------------------------------------------------------------------

// An operator's kernel for a key of autograd, to be called when another one has taken its place. Since 2.9 the operator
// gives it away. Before, the one that was registered for all keys of autograd is asked for at each call; it computes
// the keys of its arguments again.
template <class Handle>
auto autograd_kernel(const Handle& op, c10::DispatchKey key) {
  if constexpr (requires { op.getComputedKernelForDispatchKey(key); }) {
    return [kernel = op.getComputedKernelForDispatchKey(key)](const Handle& op, c10::DispatchKeySet keys,
                                                              c10::Stack* stack) { kernel.callBoxed(op, keys, stack); };
  } else {
    return [](const Handle& op, c10::DispatchKeySet, c10::Stack* stack) {
      c10::Dispatcher::singleton().callBoxedForDispatchKey(op, c10::DispatchKey::Autograd, stack);
    };
  }
}

using AutogradKernel = decltype(autograd_kernel(std::declval<c10::OperatorHandle>(), c10::DispatchKey::Undefined));

// Operators without a kernel for autograd go past it. Later versions than 2.7 see to that themselves for this device.
inline void pass_autograd() {
  constexpr auto key = c10::DispatchKey::AutogradPrivateUse1;
  if (c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(key)) return;
  static torch::Library library(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
  library.fallback(torch::autograd::basicAutogradNotImplementedFallback());
}

// --- the processor ------------------------------------------------------------------------------------------------

// Whether the processor has an instruction set, by its name in torch.cpu.get_capabilities().
inline bool cpu_has(const std::string& name) {
#if SOFTNPU_TORCH_SINCE(11)  // one function for all; before, one for each of a few
  static const auto features = at::cpu::get_cpu_capabilities();
  const auto found = features.find(name);
  return found != features.end() && found->second.isBool() && found->second.toBool();
#else
  if (name == "avx512_bf16") return at::cpu::is_avx512_bf16_supported();
  if (name == "amx_fp16") return at::cpu::is_amx_fp16_supported();
  return false;
#endif
}

// --- torch.distributed: templates, so that only who uses them includes c10d ----------------------------------------

// Since 2.9.
template <class Backend>
struct WithOptions : Backend {
  using Backend::Backend;
  virtual c10::intrusive_ptr<typename Backend::Options> getBackendOptions() = 0;
  virtual void setTimeout(std::chrono::milliseconds timeout) = 0;
};
template <class Backend>
  requires requires(Backend& backend, std::chrono::milliseconds timeout) {
    backend.getBackendOptions();
    backend.setTimeout(timeout);
  }
struct WithOptions<Backend> : Backend {
  using Backend::Backend;
};

template <class Backend>
void set_timeout(Backend& backend, std::chrono::milliseconds timeout) {
  if constexpr (requires { backend.setTimeout(timeout); })
    backend.setTimeout(timeout);  // else each call states its own
}

template <class Options>
struct WithRanks : Options {
  using Options::Options;
  std::vector<uint64_t> global_ranks_in_group;
};
template <class Options>
  requires requires(Options& options) { options.global_ranks_in_group; }
struct WithRanks<Options> : Options {
  using Options::Options;
};

// Since 2.8: a store with a connection of its own.
template <class Store>
c10::intrusive_ptr<Store> clone(const c10::intrusive_ptr<Store>& store) {
  if constexpr (requires { store->clone(); }) return store->clone();
  return store;
}

}  // namespace softnpu::compat
