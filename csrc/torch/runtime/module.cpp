// softnpu._C: what Python needs of the device.
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Storage.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <thread>

#include "device/clock.h"
#include "device/device.h"
#include "device/trace.h"
#include "hccl/bind.h"
#include "kernels/capability.h"
#include "kernels/skinny_matmul.h"
#include "torch/compat.h"
#include "torch/compute/products.h"
#include "torch/dispatch/cpu_alias.h"
#include "torch/dispatch/fallback.h"
#include "torch/dispatch/launch_hooks.h"
#include "torch/dispatch/operator_traits.h"
#include "torch/dispatch/python_kernel.h"
#include "torch/graph/graph.h"
#include "torch/memory/allocator.h"
#include "torch/memory/bindings.h"
#include "torch/memory/format.h"
#include "torch/plan/plan.h"
#include "torch/plan/values.h"
#include "torch/runtime/generator.h"
#include "torch/runtime/hooks.h"
#include "torch/runtime/npu_runtime.h"
#include "torch/runtime/profiler_events.h"
#include "torch/runtime/sync.h"
#include "torch/sanitizer/stage.h"

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
  std::map<const void*, py::tuple> groups;
  for (const TaskRecord& r : Trace::all().take()) {
    const py::tuple record = py::make_tuple(r.name, r.id, r.device, r.stream, r.thread, r.start_ns, r.end_ns,
                                            tensor_notes(r.inputs), tensor_notes(r.outputs));
    if (r.ranks == nullptr) {
      all.append(record);
      continue;
    }
    const auto group = groups.try_emplace(r.ranks.get(), py::tuple(py::cast(*r.ranks))).first;
    all.append(record + py::make_tuple(group->second));
  }
  return all;
}

std::shared_ptr<void> hold(py::object object) {  // released under the GIL, whichever thread lets go
  return {new py::object(std::move(object)), [](void* held) {
            const py::gil_scoped_acquire gil;
            delete static_cast<py::object*>(held);
          }};
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

// Whether another thread may record an event. Daemons, and threads that Python did not start (autograd's), wait for
// work and record nothing by themselves; nor do those of an executor (Inductor's, for one) that have none. Those that
// run acl's callbacks say that they do (acl/_callbacks.py).
bool others_work() {
  const py::module threading = py::module::import("threading"), pools = py::module::import("concurrent.futures.thread");
  const py::dict frames = py::module::import("sys").attr("_current_frames")();
  const py::object idle = pools.attr("_worker").attr("__code__"), queues = pools.attr("_threads_queues");
  for (const py::handle thread : threading.attr("enumerate")()) {
    if (thread.is(threading.attr("current_thread")())) continue;
    if (py::hasattr(thread, "npu_records_events")) return true;
    if (thread.attr("daemon").cast<bool>()) continue;
    const py::object queue = queues.attr("get")(thread), number = thread.attr("ident");
    const bool waits = !queue.is_none() && queue.attr("empty")().cast<bool>() && frames.contains(number) &&
                       py::object(frames[number].attr("f_code")).is(idle);
    if (!waits) return true;
  }
  return false;
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  py::register_exception<DeviceError>(m, "DeviceError", PyExc_RuntimeError);
  m.attr("torch_version") = TORCH_VERSION;  // that it was built with
  m.def("cpu_capability", &kernels::capability);

  m.def("configure", &configure_devices, py::arg("count"), py::arg("memory"));
  m.def("install", [] {
    install_allocators();
    install_hooks();
    install_profiler_events();
    register_fallbacks();
    CachingAllocator::stream_busy = [](int device, StreamId stream) {
      return Queues::any() && Queues::all().has_work(device, stream);
    };
    Queues::others_alive = [] {
      const py::gil_scoped_acquire gil;
      if (others_work()) return true;
      {  // one that has just taken its work looks idle for a moment
        const py::gil_scoped_release unlocked;
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
      return others_work();
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
  m.def("note_synchronization", &note_synchronization);
  m.def("device_clock_ns", &device_clock_ns);
  m.def("stream_is_high_priority", &Streams::high_priority);
  m.def("current_stream", &current_stream);
  // Events by their id, which is 0 while they are unrecorded.
  m.def("event_time_ns",
        [](uintptr_t event) { return event == 0 ? 0 : (*reinterpret_cast<std::shared_ptr<Event>*>(event))->time_ns; });

  // The traits of operators (operator_traits.h) by qualified name, as far as Python asks.
  m.def("operator_traits", [] {
    py::dict all;
    for (const auto& [name, traits] : all_traits()) {
      py::dict one;
      one["product"] = traits.product != OperatorTraits::kNone;
      one["widens"] = traits.widens;
      one["mixes_floats"] = traits.mixes_floats;
      one["copies"] = traits.copies;
      one["graph_node"] = traits.graph_node;
      one["type"] = traits.type;
      one["core"] = traits.core;
      all[py::str(name)] = one;
    }
    return all;
  });
  // Of an operator whose kernel is in Python. `hf32`: the switch ("matmul", "conv") that rounds its first two
  // arguments.
  m.def("add_operator_traits", [](const std::string& name, const std::optional<std::string>& hf32, bool infinite) {
    OperatorTraits traits;
    if (hf32) {
      traits.product = *hf32 == "conv" ? OperatorTraits::kConvolution : OperatorTraits::kMatmul;
      traits.factors = {0, 1};
    }
    traits.infinite = infinite;
    add_traits(name, traits);
  });

  m.def(
      "kernel_generator",
      [](const std::optional<at::Generator>& given) -> py::object {
        if (KernelScope::device() < 0) return py::none();
        return py::cast(derive_cpu_generator(given, static_cast<c10::DeviceIndex>(KernelScope::device())));
      },
      py::arg("given") = py::none());
  m.def("default_generator", [](int index) { return default_generator(static_cast<c10::DeviceIndex>(index)); });
  m.def("host_view", &host_view);
  m.def("device_view", &device_view);
  m.def("implement_half", &implement_half);
  m.attr("skinny_rows") = kernels::kSkinnyRows;
  m.def("rebase_storage", &rebase_storage);
  m.def("adopt_host_storage", &adopt_host_storage);

  bind_memory(m);
  m.def(
      "trace_start", [](bool shapes, size_t most) { Trace::all().start(shapes, most); }, py::arg("shapes") = false,
      py::arg("most") = size_t{1} << 22);
  m.def("trace_stop", [] { Trace::all().stop(); });
  m.def(
      "plan_start",
      [](std::vector<std::string> packages, double skew) {
        plan::set_packages(std::move(packages));
        plan::set_routing({skew});
        Stages::set(kPlanStage, true);
      },
      py::arg("packages"), py::arg("skew") = 1.0);
  m.def("plan_stop", [] { Stages::set(kPlanStage, false); });
  m.def("plan_on", [] { return plan::on(); });
  m.def("trace_take", &trace_take);
  m.def("trace_dropped", [] { return Trace::all().dropped(); });

  bind_python_kernel(m);
  bind_python_autograd(m);
  bind_graph(m);
  bind_hooks(m);
  bind_sanitizer(m);
  bind_runtime(m);
  hccl::bind(m);
  bind_format(m);
}

}  // namespace softnpu
