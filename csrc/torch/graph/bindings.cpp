// NPUGraph for torch.accelerator and for Python.
#include <fstream>

#include "device/device.h"
#include "torch/compat.h"
#include "torch/dispatch/deferred.h"
#include "torch/graph/graph.h"

namespace py = pybind11;

namespace softnpu {

// --- torch.accelerator.Graph ---------------------------------------------------------------------------------------

namespace {

CaptureMode mode_of(const std::string& name) {
  if (name == "global") return CaptureMode::Global;
  if (name == "thread_local") return CaptureMode::ThreadLocal;
  TORCH_CHECK(name == "relaxed", "Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, got ",
              name);
  return CaptureMode::Relaxed;
}

py::dict describe(const Step& step) {
  py::dict d;
  d["stream"] = step.stream;
  if (const auto* task = std::get_if<TaskStep>(&step.what)) {
    d["type"] = "task";
    d["name"] = task->name;
    py::list kernels;
    for (const Action& action : task->actions) {
      if (const auto* call = std::get_if<KernelCall>(&action)) kernels.append(call->name);
      if (std::holds_alternative<Reseed>(action)) kernels.append("reseed");
      if (std::holds_alternative<PythonCall>(action)) kernels.append("python");
      if (std::holds_alternative<HostWork>(action)) kernels.append("host function");
    }
    d["kernels"] = kernels;
    d["in_group"] = task->op != nullptr;
  } else {
    static const char* names[] = {"task", "external_wait", "external_reset", "external_record", "record", "wait"};
    d["type"] = names[step.what.index()];
    if (const auto* wait = std::get_if<WaitMark>(&step.what)) d["of"] = wait->mark;
  }
  return d;
}

py::list describe(const NpuGraph& graph) {
  py::list all;
  if (graph.captured()) {
    for (const Step& step : graph.program()->steps) all.append(describe(step));
  }
  return all;
}

#if SOFTNPU_HAS_ACCELERATOR_GRAPH
class AcceleratorGraph final : public at::GraphImplInterface {
 public:
  explicit AcceleratorGraph(const at::GraphImplArgs&) {}
  void capture_begin(compat::MempoolId pool, at::GraphCaptureMode mode) override {
    graph_.capture_begin(pool, mode == at::GraphCaptureMode::ThreadLocal ? CaptureMode::ThreadLocal
                               : mode == at::GraphCaptureMode::Relaxed   ? CaptureMode::Relaxed
                                                                         : CaptureMode::Global);
  }
  void capture_end() override { graph_.capture_end(); }
  void instantiate() override { TORCH_CHECK(graph_.captured(), "instantiate: capture a graph first"); }
  void replay() override { graph_.replay(); }
  void reset() override { graph_.reset(); }
  compat::MempoolId pool() const override { return graph_.pool(); }
  void enable_debug_mode() override {}
  void debug_dump(const std::string& path) override {
    const py::gil_scoped_acquire gil;
    std::ofstream(path) << py::module::import("json").attr("dumps")(describe(graph_)).cast<std::string>();
  }

 private:
  NpuGraph graph_;
};
#endif

}  // namespace

}  // namespace softnpu

#if SOFTNPU_HAS_ACCELERATOR_GRAPH
namespace at {
REGISTER_GRAPH_IMPL(NPU, softnpu::AcceleratorGraph)
}
#endif

namespace softnpu {

// --- for Python ----------------------------------------------------------------------------------------------------

namespace {

// A user's function at its place in a stream: recorded in a capture, queued behind a blocked stream, else called.
void host_function(int device, StreamId stream, py::function function) {
  auto held = std::shared_ptr<py::function>(new py::function(std::move(function)), [](py::function* f) {
    const py::gil_scoped_acquire gil;
    delete f;
  });
  auto work = [held, device, stream] {
    const py::gil_scoped_acquire gil;
    const sanitizer::AsStream here(device, stream);
    (*held)();
  };
  const py::gil_scoped_release unlocked;
  if (Capture* capture = Capture::of(device, stream)) {
    capture->check_valid();
    TaskStep step;
    step.name = "host_function";
    step.actions.emplace_back(HostWork{work});
    capture->add(stream, std::move(step));
    return;
  }
  Queues::all().launch(device, stream, [work] {
    work();
    return AnyOf{};
  });
}

Capture& capture_on(int device, StreamId stream, const char* call) {
  Capture* capture = Capture::of(device, stream);
  if (capture == nullptr) {
    raise_acl(call, acl::kNotCaptured,
              "stream " + std::to_string(stream) + " of npu:" + std::to_string(device) + " is not being captured.");
  }
  return *capture;
}

void bind_external_events(py::module& m) {
  py::class_<Signal, SignalPtr>(m, "ExternalSignal")
      .def(py::init([](const std::string& what) { return std::make_shared<Signal>(what); }))
      .def_property_readonly("given", [](const Signal& signal) { return signal.given.load(); });
  using Unlocked = py::call_guard<py::gil_scoped_release>;
  m.def(
      "external_wait",
      [](const SignalPtr& signal, int device, StreamId stream) {
        ensure_started();
        if (Capture* capture = Capture::of(device, stream)) {
          capture->check_valid();
          return capture->add(stream, ExternalWait{signal});
        }
        Queues::all().wait(device, stream, signal);
      },
      Unlocked());
  auto bind = [&](const char* name, auto in_graph, void (Queues::*now)(const SignalPtr&)) {
    m.def(
        name,
        [in_graph, now](const SignalPtr& signal, int device, StreamId stream) {
          ensure_started();
          if (Capture* capture = Capture::of(device, stream)) {
            capture->check_valid();
            return capture->add(stream, in_graph(signal));
          }
          Queues::all().launch(device, stream, [signal, now, device, stream] {
            if (sanitizer::on()) signal->order = sanitizer::Sanitizer::get().record(device, stream);
            (Queues::all().*now)(signal);
            return AnyOf{};
          });
        },
        Unlocked());
  };
  bind("external_record", [](const SignalPtr& s) { return ExternalRecord{s}; }, &Queues::signal);
  bind("external_reset", [](const SignalPtr& s) { return ExternalReset{s}; }, &Queues::reset);
}

}  // namespace

void bind_graph(py::module& m) {
  using Unlocked = py::call_guard<py::gil_scoped_release>;
  py::class_<NpuGraph>(m, "Graph")
      .def(py::init<>())
      .def(
          "capture_begin",
          [](NpuGraph& graph, PoolId pool, const std::string& mode) { graph.capture_begin(pool, mode_of(mode)); },
          Unlocked())
      .def("capture_end", &NpuGraph::capture_end, Unlocked())
      .def("replay", &NpuGraph::replay, Unlocked())
      .def("reset", &NpuGraph::reset, Unlocked())
      .def("pool", &NpuGraph::pool)
      .def_property_readonly("captured", &NpuGraph::captured)
      .def("steps", [](const NpuGraph& graph) { return describe(graph); });
  m.def("new_pool", &new_pool);
  m.def("is_capturing", [](int device, StreamId stream) { return Capture::of(device, stream) != nullptr; });
  m.def("capture_id", [](int device, StreamId stream) {
    const Capture* capture = Capture::of(device, stream);
    return capture == nullptr ? std::optional<uint64_t>() : capture->id;
  });
  m.def("values_exist", [] { return !Capture::any() && !Queues::any(); });
  m.def("host_function", &host_function);
  m.def("pool_ref_tensor", &pool_ref);

  py::class_<TaskGroup, std::shared_ptr<TaskGroup>>(m, "TaskGroup").def_readonly("id", &TaskGroup::id);
  m.def("task_group_begin", [](int device, StreamId stream) {
    capture_on(device, stream, "aclmdlRICaptureTaskGrpBegin").group_begin(stream);
  });
  m.def("task_group_end", [](int device, StreamId stream) {
    return capture_on(device, stream, "aclmdlRICaptureTaskGrpEnd").group_end(stream);
  });
  m.def("task_update_begin", &update_begin);
  m.def("task_update_end", &update_end);
  bind_external_events(m);
}

}  // namespace softnpu
