#include "torch/sanitizer/stage.h"

#include "device/device.h"
#include "torch/dispatch/cpu_alias.h"
#include "torch/dispatch/launch.h"
#include "torch/graph/capture.h"
#include "torch/memory/allocator.h"

namespace softnpu {

using sanitizer::Launch;
using sanitizer::Memory;
using sanitizer::Name;
using sanitizer::Sanitizer;

Memory memory_of(const at::Tensor& tensor) {
  if (!plain(tensor)) return {};
  const void* base = base_of(tensor);
  if (base == nullptr) return {};
  if (!on_npu(tensor)) {
    const auto [at, bytes] = pinned_block(base);
    if (at == nullptr) return {};
    return {Memory::kPinned, reinterpret_cast<uintptr_t>(at), bytes, {}};
  }
  const Block* block = block_at(base);
  if (block == nullptr) return {};
  const PoolId pool = block->pool == nullptr ? PoolId{0, 0} : block->pool->owner;
  const auto kind = pool == PoolId{0, 0} ? Memory::kDevice : Memory::kPool;
  return {kind, reinterpret_cast<uintptr_t>(block->ptr), block->requested, pool};
}

Region region_of(const at::Tensor& tensor) {
  const auto base = reinterpret_cast<uintptr_t>(base_of(tensor));
  const size_t item = tensor.dtype().itemsize();
  if (tensor.is_contiguous()) {
    return dense_region(base + static_cast<uintptr_t>(tensor.storage_offset()) * item,
                        static_cast<size_t>(tensor.numel()) * item);
  }
  return strided_region(base, item, tensor.storage_offset(), tensor.sizes().data(), tensor.strides().data(),
                        static_cast<size_t>(tensor.dim()));
}

Name shape_of(const at::Tensor& tensor) {
  thread_local std::unordered_map<uint64_t, Name> known;
  uint64_t hash = static_cast<uint64_t>(tensor.scalar_type()) + 1;
  for (const int64_t size : tensor.sizes()) {
    hash = (hash ^ static_cast<uint64_t>(size)) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  }
  Name& name = known[hash];
  if (name == 0) name = Sanitizer::get().intern(c10::str(c10::toString(tensor.scalar_type()), tensor.sizes()));
  return name;
}

namespace {

std::atomic<int> weak_references{0};

void forget_weak_reference(void* held) {
  delete static_cast<WeakReference*>(held);
  --weak_references;
}

}  // namespace

void note_weak_reference(c10::StorageImpl& storage, const Block& block) {
  const PoolId pool = block.pool->owner;
  const sanitizer::Footprint* capture =
      footprint_of(block.allocator->device(), current_stream(block.allocator->device()));
  const uint32_t graph = capture != nullptr ? capture->graph : Sanitizer::get().last_captured(pool);
  ++weak_references;
  storage.set_data_ptr_noswap(
      {storage.mutable_data(), new WeakReference{pool, graph}, &forget_weak_reference, storage.device()});
}

std::optional<WeakReference> weak_reference(const at::Tensor& tensor) {
  if (weak_references == 0 || !plain(tensor)) return std::nullopt;
  const c10::DataPtr& data = tensor.storage().data_ptr();
  if (data.get_deleter() != &forget_weak_reference) return std::nullopt;
  return *static_cast<const WeakReference*>(data.get_context());
}

sanitizer::Footprint* footprint_of(int device, StreamId stream) {
  Capture* capture = Capture::any() ? Capture::of(device, stream) : nullptr;
  return capture == nullptr ? nullptr : capture->footprint.get();
}

SanitizedRun::SanitizedRun(const Task& task) : task_(task), device_(task.device()), stream_(current_stream(device_)) {
  Sanitizer& sanitizer = Sanitizer::get();
  sanitizer::Footprint* capture = footprint_of(device_, stream_);
  task_.each_input([&](const at::Tensor& tensor) {
    if (!on_npu(tensor) || tensor.device().index() == device_) return;
    const int other = tensor.device().index();
    others_.emplace_back(other, current_stream(other));
  });
  join_others(capture);
  launch_ = sanitizer.launch(device_, stream_, sanitizer.intern(task_.name()), capture);
  stack_.emplace(launch_.stack);
  if (capture != nullptr) sanitizer.captured(task_.name());
  task_.each_access([&](const at::Tensor& tensor, bool reads, bool writes, bool some) {
    Memory memory = memory_of(tensor);
    if (const auto weak = weak_reference(tensor)) {
      memory = {Memory::kPool, reinterpret_cast<uintptr_t>(base_of(tensor)), tensor.storage().nbytes(), weak->pool};
      if (reads && capture == nullptr) {
        sanitizer.check_stale(launch_, region_of(tensor), weak->pool, weak->graph, shape_of(tensor));
      }
    }
    if (memory.kind == Memory::kNone) return;
    if (memory.kind == Memory::kPinned && !task_.touches_host()) return;
    sanitizer.access(launch_, memory, region_of(tensor), shape_of(tensor), reads, writes, some);
  });
}

// A copy between two devices is ordered with the current streams of both.
void SanitizedRun::join_others(sanitizer::Footprint* capture) {
  for (const auto& [device, stream] : others_) {
    Sanitizer::get().join_streams(device_, stream_, device, stream, capture);
  }
}

void SanitizedRun::finish() {
  Sanitizer& sanitizer = Sanitizer::get();
  task_.each_output([&](const at::Tensor& tensor) {
    if (!on_npu(tensor)) return;
    const Memory memory = memory_of(tensor);
    if (memory.kind == Memory::kNone) return;
    sanitizer.access(launch_, memory, region_of(tensor), shape_of(tensor), false, true);
  });
  join_others(launch_.capture);
  if (launch_.capture == nullptr && task_.holds_host()) sanitizer.host_waits(device_, stream_);
  sanitizer.finish(launch_);
  stack_.reset();
}

sanitizer::Order sanitize_collective(const char* name, int device, int communicator,
                                     const std::vector<std::vector<at::Tensor>>& lists, CollectiveUse use) {
  Sanitizer& sanitizer = Sanitizer::get();
  const StreamId stream = current_stream(device);
  sanitizer::Footprint* capture = footprint_of(device, stream);
  const StreamId own = sanitizer::kFirstCommunicator + communicator;
  Launch launch = sanitizer.launch_communication(device, own, stream, sanitizer.intern(name), capture);
  for (size_t i = 0; i < lists.size(); ++i) {
    for (const at::Tensor& tensor : lists[i]) {
      const Memory memory = on_npu(tensor) ? memory_of(tensor) : Memory{};
      const bool result = i == 0;
      if (memory.kind == Memory::kNone) continue;
      sanitizer.access(launch, memory, region_of(tensor), shape_of(tensor), !result || use.reads, result && use.writes);
    }
  }
  sanitizer.finish(launch);
  return sanitizer.record(device, own, capture);
}

}  // namespace softnpu
