#include "torch/memory/bindings.h"

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include "device/device.h"
#include "torch/memory/allocator.h"
#include "torch/memory/stat_dict.h"

namespace py = pybind11;

namespace softnpu {

namespace {

py::dict pool_dict(const StatArray& array) {
  py::dict d;
  const char* names[] = {"all", "small_pool", "large_pool"};
  for (size_t i = 0; i < array.size(); ++i) d[names[i]] = stat_dict(array[i]);
  return d;
}

py::dict memory_stats(int index) {
  const MemoryStats s = device(index).memory.stats();
  py::dict d;
  d["num_alloc_retries"] = s.num_alloc_retries;
  d["num_ooms"] = s.num_ooms;
  d["num_oom_rejections"] = rejections(index);
  d["num_sync_all_streams"] = s.num_sync_all_streams;
  d["num_device_alloc"] = s.num_device_alloc;
  d["num_device_free"] = s.num_device_free;
  const size_t split = device(index).memory.config().max_split_size;
  d["max_split_size"] = split == SIZE_MAX ? int64_t{-1} : static_cast<int64_t>(split);
  d["allocation"] = pool_dict(s.allocation);
  d["segment"] = pool_dict(s.segment);
  d["active"] = pool_dict(s.active);
  d["inactive_split"] = pool_dict(s.inactive_split);
  d["allocated_bytes"] = pool_dict(s.allocated_bytes);
  d["reserved_bytes"] = pool_dict(s.reserved_bytes);
  d["active_bytes"] = pool_dict(s.active_bytes);
  d["inactive_split_bytes"] = pool_dict(s.inactive_split_bytes);
  d["requested_bytes"] = pool_dict(s.requested_bytes);
  d["oversize_allocations"] = stat_dict(s.oversize_allocations);
  d["oversize_segments"] = stat_dict(s.oversize_segments);
  return d;
}

py::object context_object(const std::shared_ptr<void>& context) {
  if (!context) return py::none();
  return *static_cast<py::object*>(context.get());
}

std::shared_ptr<void> hold(py::object object) {  // released under the GIL, whichever thread lets go
  return {new py::object(std::move(object)), [](void* held) {
            const py::gil_scoped_acquire gil;
            delete static_cast<py::object*>(held);
          }};
}

py::list memory_segments(int index) {
  py::list all;
  for (const SegmentInfo& segment : device(index).memory.segments()) {
    py::list blocks;
    for (const BlockInfo& block : segment.blocks) {
      py::dict b;
      b["address"] = block.address;
      b["size"] = block.size;
      b["requested_size"] = block.requested;
      b["state"] = block.allocated ? "active_allocated" : block.active ? "active_pending_free" : "inactive";
      b["frames"] = block.context ? context_object(block.context) : py::list();
      blocks.append(b);
    }
    py::dict s;
    s["device"] = index;
    s["address"] = segment.address;
    s["total_size"] = segment.total;
    s["allocated_size"] = segment.allocated;
    s["active_size"] = segment.active;
    s["requested_size"] = segment.requested;
    s["stream"] = segment.stream;
    s["segment_type"] = segment.small ? "small" : "large";
    s["segment_pool_id"] = py::make_tuple(segment.pool.first, segment.pool.second);
    s["is_expandable"] = segment.expandable;
    s["frames"] = py::list();
    s["blocks"] = blocks;
    all.append(s);
  }
  return all;
}

py::list memory_history(int index) {
  static const char* names[] = {"alloc",         "free_requested", "free_completed",
                                "segment_alloc", "segment_free",   "segment_map",
                                "segment_unmap", "snapshot",       "oom"};
  py::list all;
  for (const MemoryEvent& event : device(index).memory.history()) {
    py::dict e;
    e["action"] = names[event.action];
    e[event.action == MemoryEvent::Oom ? "device_free" : "addr"] = event.address;
    e["size"] = event.size;
    e["stream"] = event.stream;
    e["time_us"] = event.time_ns / 1000;
    e["frames"] = event.context ? context_object(event.context) : py::list();
    all.append(e);
  }
  return all;
}

void record_history(int index, bool on, size_t most, const py::object& frames, bool on_free) {
  CachingAllocator::ContextFn context;
  if (!frames.is_none()) {
    auto held = hold(frames);
    context = [held]() -> std::shared_ptr<void> {
      if (!Py_IsInitialized() || _Py_IsFinalizing()) return nullptr;
      const py::gil_scoped_acquire gil;
      const py::error_scope error;  // a block may be freed while an exception passes
      return hold((*static_cast<py::object*>(held.get()))());
    };
  }
  device(index).memory.record_history(on, most, std::move(context), on_free);
}

void configure_allocator(const py::dict& given) {
  AllocatorConfig config;
  if (given.contains("max_split_size")) config.max_split_size = given["max_split_size"].cast<size_t>();
  if (given.contains("garbage_collection_threshold")) {
    config.garbage_collection_threshold = given["garbage_collection_threshold"].cast<double>();
  }
  if (given.contains("expandable_segments")) config.expandable_segments = given["expandable_segments"].cast<bool>();
  if (given.contains("caching")) config.caching = given["caching"].cast<bool>();
  if (given.contains("large_segment")) config.large_segment = given["large_segment"].cast<size_t>();
  if (given.contains("roundup_power2")) {
    config.roundup_power2 = given["roundup_power2"].cast<std::vector<std::pair<size_t, size_t>>>();
  }
  for (int i = 0; i < device_count(); ++i) device(i).memory.configure(config);
}

uintptr_t raw_alloc(int index, size_t bytes, StreamId stream) {
  ensure_started();
  try {
    return reinterpret_cast<uintptr_t>(device(index).memory.allocate(bytes, stream)->ptr);
  } catch (const OutOfMemory& error) {
    TORCH_CHECK_WITH(OutOfMemoryError, false, error.what());
  }
}

void raw_free(uintptr_t address) {
  Block* block = block_at(reinterpret_cast<const void*>(address));
  TORCH_CHECK(block != nullptr, "invalid device pointer: ", address, " was not allocated by the NPU caching allocator");
  block->allocator->free(block);
}

}  // namespace

void bind_memory(py::module& m) {
  m.def("memory_stats", &memory_stats);
  m.def("memory_segments", &memory_segments);
  m.def("memory_history", &memory_history);
  m.def("record_history", &record_history);
  m.def("configure_allocator", &configure_allocator);
  m.def("empty_cache", [] { npu_allocator()->emptyCache({0, 0}); });
  m.def("reset_peak", [](int index) { device(index).memory.reset_peak(); });
  m.def("reset_accumulated", [](int index) {
    device(index).memory.reset_accumulated();
    reset_rejections(index);
  });
  m.def("memory_info", [](int index) { return npu_allocator()->getMemoryInfo(static_cast<c10::DeviceIndex>(index)); });
  m.def("set_memory_fraction", [](int index, double fraction) { device(index).memory.set_fraction(fraction); });
  m.def("memory_fraction", [](int index) { return device(index).memory.fraction(); });
  m.def("raw_alloc", &raw_alloc);
  m.def("raw_free", &raw_free);
  m.def("erase_stream", [](const at::Tensor& tensor, StreamId stream) {
    if (Block* block = block_of(tensor.storage().data_ptr())) {
      block->allocator->erase_stream(block, stream);
      if (sanitizer::on()) sanitizer::Sanitizer::get().erase_stream(*block, stream);
    }
  });
  m.def("begin_pool", [](int index, PoolId pool, StreamId stream) {
    device(index).memory.begin_pool(pool, [stream](StreamId s) { return stream < 0 || s == stream; });
  });
  m.def("end_pool", [](int index, PoolId pool) { device(index).memory.end_pool(pool); });
  m.def("release_pool", [](int index, PoolId pool) { device(index).memory.release_pool(pool); });
}

}  // namespace softnpu
