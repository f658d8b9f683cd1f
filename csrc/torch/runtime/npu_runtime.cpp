// What torch.npu needs of the device beyond module.cpp: users' allocators, pools of one thread, pinned memory's
// statistics, storages that a fault made unsafe, tensors that own nothing.
#include "torch/runtime/npu_runtime.h"

#include <ATen/ops/empty.h>
#include <c10/core/StorageImpl.h>
#include <torch/csrc/Storage.h>

#include <thread>

#include "device/device.h"
#include "torch/compat.h"
#include "torch/dispatch/cpu_alias.h"
#include "torch/memory/allocator.h"
#include "torch/memory/stat_dict.h"

namespace py = pybind11;

namespace softnpu {

namespace {

// --- users' allocators --------------------------------------------------------------------------------------------

using AllocateFn = void*(ssize_t, int, void*);
using FreeFn = void(void*, ssize_t, int, void*);

void* stream_handle(StreamId stream) { return reinterpret_cast<void*>(static_cast<uintptr_t>(stream + 1)); }

std::shared_ptr<Plugin> plugin(uintptr_t allocate, uintptr_t release) {
  if (allocate == 0) return nullptr;
  auto made = std::make_shared<Plugin>();
  made->allocate = [allocate](size_t bytes, int index, StreamId stream) {
    return reinterpret_cast<AllocateFn*>(allocate)(static_cast<ssize_t>(bytes), index, stream_handle(stream));
  };
  made->free = [release](void* at, size_t bytes, int index, StreamId stream) {
    reinterpret_cast<FreeFn*>(release)(at, static_cast<ssize_t>(bytes), index, stream_handle(stream));
  };
  return made;
}

void set_plugin(uintptr_t allocate, uintptr_t release) {
  for (int i = 0; i < device_count(); ++i) device(i).memory.set_plugin(plugin(allocate, release));
}

// --- pinned memory ------------------------------------------------------------------------------------------------

py::dict duration(const at::DurationStat& stat) {
  py::dict d;
  d["total"] = stat.total;
  d["max"] = stat.max;
  d["min"] = stat.min;
  d["count"] = stat.count;
  d["avg"] = stat.count == 0 ? 0 : stat.total / stat.count;
  return d;
}

compat::HostAllocator& pinned() { return *compat::host_allocator(); }

py::dict host_memory_stats() {
  at::HostStats stats = pinned().get_stats();
  const compat::HostCounts counts = compat::counts_of(stats);
  py::dict d;
  d["num_host_alloc"] = stats.num_host_alloc;
  d["num_host_free"] = stats.num_host_free;
  d["allocations"] = stat_dict(counts.allocations);
  d["allocated_bytes"] = stat_dict(counts.allocated_bytes);
  d["active_requests"] = stat_dict(counts.active_requests);
  d["active_bytes"] = stat_dict(counts.active_bytes);
  d["host_alloc_time"] = duration(stats.host_alloc_time);
  d["host_free_time"] = duration(stats.host_free_time);
  return d;
}

void configure_extra(const py::dict& given) {
  for (int i = 0; i < device_count(); ++i) {
    AllocatorConfig config = device(i).memory.config();
    if (given.contains("max_non_split_rounding")) {
      config.max_non_split_rounding = given["max_non_split_rounding"].cast<size_t>();
    }
    if (given.contains("page")) config.page = given["page"].cast<size_t>();
    device(i).memory.configure(config);
  }
}

// --- storages -----------------------------------------------------------------------------------------------------

Block* block_of_storage(const py::object& storage) {
  const c10::Storage given = torch::createStorage(storage.ptr());
  TORCH_CHECK(given.device().type() == c10::kPrivateUse1, "expected an NPU storage, got one on ", given.device());
  return block_of(given.data_ptr());
}

void mark_unsafe(int index, uintptr_t address, size_t size) {
  for (const uintptr_t at : {address, address + (size > 0 ? size - 1 : 0)}) {
    if (Block* block = device(index).memory.find(reinterpret_cast<const void*>(at))) block->unsafe = true;
  }
}

// The same bytes, sizes and strides, but nothing is kept alive.
at::Tensor weak_ref_tensor(const at::Tensor& tensor) {
  TORCH_CHECK(on_npu(tensor), "weak_ref_tensor: expected an NPU tensor, got one on ", tensor.device());
  return npu_view(tensor, tensor.device(), /*keep_alive=*/false);
}

}  // namespace

void bind_runtime(py::module& m) {
  m.def("set_plugin", &set_plugin);
  m.def("set_pool_plugin", [](int index, PoolId pool, uintptr_t allocate, uintptr_t release) {
    device(index).memory.set_pool_plugin(pool, plugin(allocate, release));
  });
  m.def("retain_pool", [](int index, PoolId pool) { device(index).memory.retain_pool(pool); });
  m.def("begin_pool_in_thread", [](int index, PoolId pool) {
    device(index).memory.begin_pool(
        pool, [owner = std::this_thread::get_id()](StreamId) { return std::this_thread::get_id() == owner; });
  });
  m.def("configure_extra", &configure_extra);
  m.def("count_rejections", &count_rejections);
  m.def("configure_pinned", &configure_pinned, py::arg("round_threshold"), py::arg("cached_limit"));

  m.def("host_memory_stats", &host_memory_stats);
  m.def("host_empty_cache", [] { pinned().empty_cache(); });
  m.def("host_reset_accumulated", [] { pinned().reset_accumulated_stats(); });
  m.def("host_reset_peak", [] { pinned().reset_peak_stats(); });

  m.def("mark_all_unsafe", [](int index) { device(index).memory.mark_all_unsafe(); });
  m.def("mark_unsafe", &mark_unsafe);
  m.def("storage_is_safe", [](const py::object& storage) {
    const Block* block = block_of_storage(storage);
    return block == nullptr || !block->unsafe;
  });
  m.def("storage_make_safe", [](const py::object& storage) {
    if (Block* block = block_of_storage(storage)) block->unsafe = false;
  });
  m.def("weak_ref_tensor", &weak_ref_tensor);
  m.def("storage_use_count", [](uintptr_t storage) {
    return c10::raw::intrusive_ptr::use_count(reinterpret_cast<c10::StorageImpl*>(storage));
  });
}

}  // namespace softnpu
