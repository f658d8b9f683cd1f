// softnpu._C: what Python needs of the device.
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Storage.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "device/clock.h"
#include "device/device.h"
#include "hccl/bind.h"
#include "torch/allocator.h"
#include "torch/border.h"
#include "torch/fallback.h"
#include "torch/format.h"
#include "torch/generator.h"
#include "torch/graph.h"
#include "torch/hooks.h"
#include "torch/npu_watch.h"
#include "torch/products.h"
#include "torch/python_kernel.h"
#include "torch/stat_dict.h"
#include "torch/sync.h"
#include "torch/task.h"

namespace py = pybind11;

namespace softnpu {

namespace {

// --- the log of tasks ------------------------------------------------------------------------------------------

py::list tensor_notes(const std::vector<TensorNote>& notes) {
  py::list all;
  for (const TensorNote& note : notes) {
    const auto* dtype = torch::getTHPDtype(static_cast<at::ScalarType>(note.type));
    all.append(
        py::make_tuple(py::tuple(py::cast(note.shape)),
                       py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(const_cast<THPDtype*>(dtype)))));
  }
  return all;
}

py::list trace_take() {
  py::list all;
  for (const TaskRecord& r : Trace::all().take()) {
    all.append(py::make_tuple(r.name, r.id, r.device, r.stream, r.thread, r.start_ns, r.end_ns, tensor_notes(r.inputs),
                              tensor_notes(r.outputs)));
  }
  return all;
}

// --- memory ----------------------------------------------------------------------------------------------------

py::dict pool_dict(const StatArray& array) {
  py::dict d;
  const char* names[] = {"all", "small_pool", "large_pool"};
  for (size_t i = 0; i < array.size(); ++i) d[names[i]] = stat_dict(array[i]);
  return d;
}

py::dict memory_stats(int index) {
  const MemoryStats s = device(index).arena.stats();
  py::dict d;
  d["num_alloc_retries"] = s.num_alloc_retries;
  d["num_ooms"] = s.num_ooms;
  d["num_sync_all_streams"] = s.num_sync_all_streams;
  d["num_device_alloc"] = s.num_device_alloc;
  d["num_device_free"] = s.num_device_free;
  const size_t split = device(index).arena.config().max_split_size;
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
  for (const SegmentInfo& segment : device(index).arena.segments()) {
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
  for (const MemoryEvent& event : device(index).arena.history()) {
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
  Arena::ContextFn context;
  if (!frames.is_none()) {
    auto held = hold(frames);
    context = [held] {
      const py::gil_scoped_acquire gil;
      return hold((*static_cast<py::object*>(held.get()))());
    };
  }
  device(index).arena.record_history(on, most, std::move(context), on_free);
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
  for (int i = 0; i < device_count(); ++i) device(i).arena.configure(config);
}

uintptr_t raw_alloc(int index, size_t bytes, StreamId stream) {
  ensure_started();
  try {
    return reinterpret_cast<uintptr_t>(device(index).arena.allocate(bytes, stream)->ptr);
  } catch (const OutOfMemory& error) {
    TORCH_CHECK_WITH(OutOfMemoryError, false, error.what());
  }
}

void raw_free(uintptr_t address) {
  Block* block = block_at(reinterpret_cast<const void*>(address));
  TORCH_CHECK(block != nullptr, "invalid device pointer: ", address, " was not allocated by the NPU caching allocator");
  block->arena->free(block);
}

// --- sharing storages between processes ----------------------------------------------------------------------------

// Makes the NPU storage stand on the bytes of a (shared) CPU storage, which it keeps alive.
void adopt_host_storage(const py::object& npu, const py::object& host) {
  const c10::Storage target = torch::createStorage(npu.ptr());
  const c10::Storage source = torch::createStorage(host.ptr());
  TORCH_CHECK(source.nbytes() >= target.nbytes(), "adopt_host_storage: the host storage is smaller");
  const c10::Device device = target.device();
  auto* keep = new c10::Storage(source);
  target.unsafeGetStorageImpl()->set_data_ptr_noswap(
      {source.mutable_data(), keep, [](void* held) { delete static_cast<c10::Storage*>(held); }, device});
}

// The same, with the NPU storage's bytes copied there first.
void rebase_storage(const py::object& npu, const py::object& host) {
  const c10::Storage target = torch::createStorage(npu.ptr());
  const c10::Storage source = torch::createStorage(host.ptr());
  if (target.nbytes() > 0) std::memcpy(source.mutable_data(), target.data(), target.nbytes());
  adopt_host_storage(npu, host);
}

at::Tensor host_view(const at::Tensor& tensor) {
  TORCH_CHECK(on_npu(tensor), "host_view: expected an NPU tensor, got one on ", tensor.device());
  at::Tensor view = cpu_alias(tensor);
  view.unsafeGetTensorImpl()->set_version_counter(c10::VariableVersion(0));
  return view;
}

// The reverse: an NPU tensor on the bytes of a host tensor, which it keeps alive.
at::Tensor device_view(const at::Tensor& host, int index) {
  TORCH_CHECK(host.device().is_cpu() && host.layout() == at::kStrided, "device_view: expected a dense CPU tensor");
  const c10::Device npu(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(index));
  device(index);
  return npu_view(host, npu, /*keep_alive=*/true);
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  py::register_exception<DeviceError>(m, "DeviceError", PyExc_RuntimeError);

  m.def("configure", &configure_devices, py::arg("count"), py::arg("memory"));
  m.def("install", [] {
    install_allocators();
    install_hooks();
    register_fallbacks();
    Arena::stream_busy = [](int device, StreamId stream) {
      return Queues::any() && Queues::all().blocked(device, stream);
    };
    Queues::others_alive = [] {
      const py::gil_scoped_acquire gil;
      const py::module threading = py::module::import("threading");
      // Daemons, and threads that Python did not start (autograd's), wait for work and record nothing by themselves.
      for (const py::handle thread : threading.attr("enumerate")()) {
        const bool here = thread.is(threading.attr("current_thread")());
        if (!here && !thread.attr("daemon").cast<bool>()) return true;
      }
      return false;
    };
    Queues::while_waiting = [](const std::function<void()>& sleep) {
      std::optional<py::gil_scoped_release> unlocked;
      if (PyGILState_Check()) unlocked.emplace();
      sleep();
    };
  });
  m.def("on_start", [](py::function callback) {
    auto held = hold(std::move(callback));
    softnpu::on_start = [held] {
      const py::gil_scoped_acquire gil;
      (*static_cast<py::object*>(held.get()))();
    };
  });

  m.def("ensure_started", &ensure_started);
  m.def("started", &started);
  m.def("in_forked_child", &in_forked_child);
  m.def("device_count", &device_count);
  m.def("current_device", &current_device);
  m.def("set_device", &set_current_device);
  m.def("exchange_device", [](int index) {
    const int before = current_device();
    if (index >= 0) set_current_device(index);
    return before;
  });
  m.def("set_sync_debug_mode", &set_sync_debug_mode);
  m.def("sync_debug_mode", &sync_debug_mode);
  m.def("note_synchronisation", &note_synchronisation);
  m.def("device_clock_ns", &device_clock_ns);
  m.def("stream_is_high_priority", &Streams::high_priority);
  m.def("current_stream", &current_stream);
  // Events by their id, which is 0 while they are unrecorded.
  m.def("event_elapsed_ms", [](uintptr_t first, uintptr_t last) {
    const c10::impl::VirtualGuardImpl guard(c10::kPrivateUse1);
    return guard.elapsedTime(reinterpret_cast<void*>(first), reinterpret_cast<void*>(last), -1);
  });
  m.def("event_time_ns",
        [](uintptr_t event) { return event == 0 ? 0 : (*reinterpret_cast<std::shared_ptr<Event>*>(event))->time_ns; });

  m.def("kernel_generator", []() -> py::object {
    if (KernelScope::device() < 0) return py::none();
    return py::cast(derive_cpu_generator(std::nullopt, static_cast<c10::DeviceIndex>(KernelScope::device())));
  });
  m.def("default_generator", [](int index) { return default_generator(static_cast<c10::DeviceIndex>(index)); });
  m.def("host_view", &host_view);
  m.def("device_view", &device_view);
  m.def("kernel_device", &KernelScope::device);
  m.def("implement_half", &implement_half);
  m.def("rebase_storage", &rebase_storage);
  m.def("adopt_host_storage", &adopt_host_storage);

  m.def("memory_stats", &memory_stats);
  m.def("memory_segments", &memory_segments);
  m.def("memory_history", &memory_history);
  m.def("record_history", &record_history);
  m.def("configure_allocator", &configure_allocator);
  m.def("empty_cache", [] { npu_allocator()->emptyCache({0, 0}); });
  m.def("reset_peak", [](int index) { device(index).arena.reset_peak(); });
  m.def("reset_accumulated", [](int index) { device(index).arena.reset_accumulated(); });
  m.def("memory_info", [](int index) { return npu_allocator()->getMemoryInfo(static_cast<c10::DeviceIndex>(index)); });
  m.def("set_memory_fraction", [](int index, double fraction) { device(index).arena.set_fraction(fraction); });
  m.def("memory_fraction", [](int index) { return device(index).arena.fraction(); });
  m.def("raw_alloc", &raw_alloc);
  m.def("raw_free", &raw_free);
  m.def("erase_stream", [](const at::Tensor& tensor, StreamId stream) {
    if (Block* block = block_of(tensor.storage().data_ptr())) block->arena->erase_stream(block, stream);
  });
  m.def("begin_pool", [](int index, PoolId pool, StreamId stream) {
    device(index).arena.begin_pool(pool, [stream](StreamId s) { return stream < 0 || s == stream; });
  });
  m.def("end_pool", [](int index, PoolId pool) { device(index).arena.end_pool(pool); });
  m.def("release_pool", [](int index, PoolId pool) { device(index).arena.release_pool(pool); });

  m.def(
      "trace_start", [](bool shapes, size_t most) { Trace::all().start(shapes, most); }, py::arg("shapes") = false,
      py::arg("most") = size_t{1} << 22);
  m.def("trace_stop", [] { Trace::all().stop(); });
  m.def("trace_take", &trace_take);
  m.def("trace_dropped", [] { return Trace::all().dropped(); });

  bind_python_kernel(m);
  bind_python_autograd(m);
  bind_graph(m);
  bind_watch(m);
  bind_runtime(m);
  hccl::bind(m);
  bind_format(m);
}

}  // namespace softnpu
