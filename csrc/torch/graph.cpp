#include "torch/graph.h"

#include <ATen/core/GraphImplInterface.h>
#include <c10/core/DeviceGuard.h>

#include <fstream>
#include <set>

#include "device/device.h"
#include "torch/defer.h"
#include "torch/ivalues.h"
#include "torch/task.h"

namespace py = pybind11;

namespace softnpu {

namespace {

void run_actions(const TaskStep& step, int device) {
  const Task task(step.name, device);
  for (const Action& action : step.actions) {
    std::visit([](const auto& one) { one.run(); }, action);
  }
}

// An operator whose arguments were replaced: called anew, its results written where the captured ones were.
void run_updated(const TaskStep::Operator& op, const std::vector<c10::IValue>& arguments) {
  Stack stack(arguments.begin(), arguments.end());
  op.call(&stack);
  size_t next = 0;
  each_new_tensor(stack, stack.size(), arguments, [&](const at::Tensor& result) {
    TORCH_CHECK(next < op.results.size() && op.results[next].sizes() == result.sizes(), op.name,
                ": the updated arguments give a result of shape ", result.sizes(),
                next < op.results.size() ? ", but the graph was captured with " : "",
                next < op.results.size() ? c10::str(op.results[next].sizes()) : "");
    op.results[next++].copy_(result);
  });
}

void run_task(const TaskStep& step, int device) {
  if (step.op != nullptr) {
    std::shared_ptr<const std::vector<c10::IValue>> updated;
    {
      const std::lock_guard<std::mutex> lock(step.op->mutex);
      updated = step.op->updated;
    }
    if (updated != nullptr) {
      if (!step.follows) run_updated(*step.op, *updated);
      return;
    }
  }
  run_actions(step, device);
}

// One replay. Steps of a branch that waits for an external event are put off; the others go on.
class Replay {
 public:
  explicit Replay(std::shared_ptr<const Program> program) : program_(std::move(program)) {
    left_.resize(program_->steps.size());
    for (size_t i = 0; i < left_.size(); ++i) left_[i] = i;
  }

  AnyOf operator()() {
    std::vector<size_t> put_off;
    std::set<StreamId> blocked;
    std::set<size_t> unmarked;
    AnyOf awaited;
    for (const size_t i : left_) {
      const Step& step = program_->steps[i];
      if (blocked.count(step.stream) == 0 && !ready(step, unmarked, awaited)) blocked.insert(step.stream);
      if (blocked.count(step.stream) > 0) {
        put_off.push_back(i);
        if (std::holds_alternative<Mark>(step.what)) unmarked.insert(i);
      } else {
        run(step);
      }
    }
    left_ = std::move(put_off);
    return awaited;
  }

 private:
  static bool ready(const Step& step, const std::set<size_t>& unmarked, AnyOf& awaited) {
    if (const auto* wait = std::get_if<WaitMark>(&step.what)) return unmarked.count(wait->mark) == 0;
    const auto* wait = std::get_if<ExternalWait>(&step.what);
    if (wait == nullptr || wait->signal->given) return true;
    awaited.push_back(wait->signal);
    return false;
  }

  void run(const Step& step) const {
    if (const auto* task = std::get_if<TaskStep>(&step.what)) {
      std::optional<OnStream> aside;
      if (step.stream != program_->origin) aside.emplace(program_->device, step.stream);
      run_task(*task, program_->device);
    } else if (const auto* reset = std::get_if<ExternalReset>(&step.what)) {
      Queues::all().take_back(reset->signal);
    } else if (const auto* record = std::get_if<ExternalRecord>(&step.what)) {
      Queues::all().give(record->signal);
    }
  }

  std::shared_ptr<const Program> program_;
  std::vector<size_t> left_;
};

CaptureMode mode_of(const std::string& name) {
  if (name == "global") return CaptureMode::Global;
  if (name == "thread_local") return CaptureMode::ThreadLocal;
  TORCH_CHECK(name == "relaxed", "Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, got ",
              name);
  return CaptureMode::Relaxed;
}

}  // namespace

PoolId new_pool(bool by_user) {
  static std::atomic<uint64_t> next{1};
  const uint64_t id = next++;
  return by_user ? PoolId{0, id + (uint64_t{1} << 32)} : PoolId{id, 0};
}

Program::~Program() { softnpu::device(device).arena.release_pool(pool); }

NpuGraph::~NpuGraph() { reset(); }

void NpuGraph::capture_begin(PoolId pool, CaptureMode mode) {
  ensure_started();
  TORCH_CHECK(program_ == nullptr && capture_ == nullptr,
              "This NPUGraph instance already owns a captured graph. To capture a new graph, create a new instance.");
  const int device = current_device();
  const StreamId stream = current_stream(device);
  TORCH_CHECK(stream != kDefaultStream,
              "NPU graphs must be captured on a non-default stream. (However, after capture, it's ok to replay them on "
              "the default stream.)");
  TORCH_CHECK(stream < 128, "NPUGraph::capture_begin is not supported on an external stream");
  if (Capture::of(device, stream) != nullptr) {
    raise_acl("aclmdlRICaptureBegin", acl::kStreamCaptured,
              "stream " + std::to_string(stream) + " is being captured already; end that capture first.");
  }
  if (Queues::any() && Queues::all().device_blocked(device)) {
    raise_acl("aclmdlRICaptureBegin", acl::kModeForbids,
              "npu:" + std::to_string(device) +
                  " has a stream that waits for an event nobody has recorded; record it "
                  "and synchronize before the capture.");
  }
  if (pool == PoolId{0, 0}) pool = new_pool(false);
  capture_ = std::make_unique<Capture>(device, stream, pool, mode);
}

void NpuGraph::capture_end() {
  TORCH_CHECK(capture_ != nullptr, "capture_end() called before capture_begin().");
  const StreamId stream = current_stream(capture_->device);
  if (stream != capture_->origin) {
    raise_acl("aclmdlRICaptureEnd", acl::kUnmatched,
              "Capture must end on the same stream it began on: it began on stream " +
                  std::to_string(capture_->origin) + ", the current one is " + std::to_string(stream) + ".");
  }
  const auto capture = std::move(capture_);
  auto program = std::make_shared<Program>(capture->device, capture->origin, capture->pool);
  program->steps = capture->finish();
  program->randoms = capture->randoms();
  program_ = std::move(program);
}

void NpuGraph::replay() {
  TORCH_CHECK(program_ != nullptr, "Called NPUGraph::replay without a preceding successful capture.");
  const int device = program_->device;
  const StreamId stream = current_stream(device);
  if (Capture* outer = Capture::of(device, stream)) {
    const std::string text = "a graph cannot be replayed on stream " + std::to_string(stream) +
                             ", which is being captured into another one.";
    outer->fail(acl::kStreamCaptured, text);
    raise_acl("aclmdlRIExecuteAsync", acl::kStreamCaptured, text);
  }
  const OnStream here(device, stream);
  for (const auto& random : program_->randoms) random->begin_replay();
  Queues::all().launch(device, stream, Replay(program_));
}

void NpuGraph::reset() {
  if (capture_ != nullptr) {  // dropped in the middle: what it wrote is put back, its memory given back
    const auto capture = std::move(capture_);
    const Program memory(capture->device, capture->origin, capture->pool);
    capture->abandon();
  }
  program_.reset();
}

PoolId NpuGraph::pool() const {
  TORCH_CHECK(program_ != nullptr, "Called NPUGraph::pool() without a preceding successful capture.");
  return program_->pool;
}

// --- torch.accelerator.Graph ---------------------------------------------------------------------------------------

namespace {

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

class AcceleratorGraph final : public at::GraphImplInterface {
 public:
  explicit AcceleratorGraph(const at::GraphImplArgs&) {}
  void capture_begin(c10::MempoolId_t pool, at::GraphCaptureMode mode) override {
    graph_.capture_begin(pool, mode == at::GraphCaptureMode::ThreadLocal ? CaptureMode::ThreadLocal
                               : mode == at::GraphCaptureMode::Relaxed   ? CaptureMode::Relaxed
                                                                         : CaptureMode::Global);
  }
  void capture_end() override { graph_.capture_end(); }
  void instantiate() override { TORCH_CHECK(graph_.captured(), "instantiate: capture a graph first"); }
  void replay() override { graph_.replay(); }
  void reset() override { graph_.reset(); }
  c10::MempoolId_t pool() const override { return graph_.pool(); }
  void enable_debug_mode() override {}
  void debug_dump(const std::string& path) override {
    const py::gil_scoped_acquire gil;
    std::ofstream(path) << py::module::import("json").attr("dumps")(describe(graph_)).cast<std::string>();
  }

 private:
  NpuGraph graph_;
};

}  // namespace

}  // namespace softnpu

namespace at {
REGISTER_GRAPH_IMPL(NPU, softnpu::AcceleratorGraph)
}

namespace softnpu {

// --- for Python ----------------------------------------------------------------------------------------------------

namespace {

// A user's function at its place in a stream: recorded in a capture, queued behind a blocked stream, else called.
void host_function(int device, StreamId stream, py::function function) {
  auto held = std::shared_ptr<py::function>(new py::function(std::move(function)), [](py::function* f) {
    const py::gil_scoped_acquire gil;
    delete f;
  });
  auto work = [held] {
    const py::gil_scoped_acquire gil;
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
        watch_launches();
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
          Queues::all().launch(device, stream, [signal, now] {
            (Queues::all().*now)(signal);
            return AnyOf{};
          });
        },
        Unlocked());
  };
  bind("external_record", [](const SignalPtr& s) { return ExternalRecord{s}; }, &Queues::give);
  bind("external_reset", [](const SignalPtr& s) { return ExternalReset{s}; }, &Queues::take_back);
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
  m.def("values_exist", [] { return !Capture::any() && !Queues::any(); });
  m.def("host_function", &host_function);
  m.def("pool_ref_tensor", &pool_ref);

  py::class_<TaskGroup, std::shared_ptr<TaskGroup>>(m, "TaskGroup").def_readonly("id", &TaskGroup::id);
  m.def("task_group_begin", [](int device, StreamId stream) {
    watch_launches();
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
