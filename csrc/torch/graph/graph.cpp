#include "torch/graph/graph.h"

#include <c10/core/DeviceGuard.h>

#include <set>

#include "device/device.h"
#include "torch/dispatch/deferred.h"
#include "torch/dispatch/ivalues.h"
#include "torch/dispatch/kernel_frame.h"
#include "torch/dispatch/launch.h"

namespace softnpu {

namespace {

void run_actions(const TaskStep& step, int device) {
  const KernelFrame frame(device);
  std::optional<TraceScope> trace;
  if (Stages::asked(kTraceStage)) trace.emplace(step.name, device);
  for (const Action& action : step.actions) {
    std::visit([](const auto& one) { one.run(); }, action);
    const auto* call = std::get_if<KernelCall>(&action);
    if (call == nullptr || !trace || !plan::on()) continue;
    for (const c10::IValue& value : call->arguments) each_tensor(value, [&](const at::Tensor& t) { trace->input(t); });
    for (const at::Tensor& result : call->results) trace->output(result);
  }
}

// An operator whose arguments were replaced: called anew, its results written where the captured ones were.
void run_updated(const TaskStep::Operator& op, const TaskStep::Update& updated) {
  const InsideLaunch guard;
  const c10::impl::ExcludeDispatchKeyGuard below(kAboveBackend);
  Stack stack(updated.arguments.begin(), updated.arguments.end());
  OperatorTask task(*op.operation, &stack, updated.kernel);
  softnpu::run_task(task);
  size_t next = 0;
  each_new_tensor(stack, stack.size(), updated.arguments, [&](const at::Tensor& result) {
    TORCH_CHECK(next < op.results.size() && op.results[next].sizes() == result.sizes(), op.name,
                ": the updated arguments give a result of shape ", result.sizes(),
                next < op.results.size() ? ", but the graph was captured with " : "",
                next < op.results.size() ? c10::str(op.results[next].sizes()) : "");
    op.results[next++].copy_(result);
  });
}

void run_step(const TaskStep& step, int device) {
  if (step.op != nullptr) {
    std::shared_ptr<const TaskStep::Update> updated;
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

// One replay. Steps of a branch that waits for an external event are deferred; the others go on.
class Replay {
 public:
  explicit Replay(std::shared_ptr<const Program> program) : program_(std::move(program)) {
    left_.resize(program_->steps.size());
    for (size_t i = 0; i < left_.size(); ++i) left_[i] = i;
    if (sanitizer::on() && program_->footprint) origin_ = sanitizer::Sanitizer::get().origin();
  }

  AnyOf operator()() {
    if (origin_.has_value() && waits_for_nobody()) account();
    std::vector<size_t> later;
    std::set<StreamId> blocked;
    std::set<size_t> unmarked;
    AnyOf awaited;
    std::vector<sanitizer::Order> passed;
    for (const size_t i : left_) {
      const Step& step = program_->steps[i];
      if (blocked.count(step.stream) == 0 && !ready(step, unmarked, awaited, passed)) blocked.insert(step.stream);
      if (blocked.count(step.stream) > 0) {
        later.push_back(i);
        if (std::holds_alternative<Mark>(step.what)) unmarked.insert(i);
      } else {
        run(step);
      }
    }
    left_ = std::move(later);
    for (const auto& order : passed) {
      sanitizer::Sanitizer::get().wait(program_->device, current_stream(program_->device), order);
    }
    if (left_.empty()) {
      account();
      if (sanitizer::on() && program_->footprint) {
        sanitizer::Launch done;
        done.pinned = true;
        sanitizer::Sanitizer::get().finish(done);
      }
    }
    return awaited;
  }

 private:
  // For the sanitizer the whole of it is one step of its stream: the first thing it does, or the last if it waits for
  // somebody in between.
  void account() {
    if (!origin_.has_value()) return;
    const sanitizer::From from(*origin_);
    sanitizer::Sanitizer::get().replayed(program_->device, current_stream(program_->device), program_->footprint);
    origin_.reset();
  }

  bool waits_for_nobody() const {
    for (const Step& step : program_->steps) {
      const auto* wait = std::get_if<ExternalWait>(&step.what);
      if (wait == nullptr) continue;
      if (!wait->signal->given) return false;
      sanitizer::Sanitizer::get().wait(program_->device, current_stream(program_->device), wait->signal->order);
    }
    return true;
  }

  static bool ready(const Step& step, const std::set<size_t>& unmarked, AnyOf& awaited,
                    std::vector<sanitizer::Order>& passed) {
    if (const auto* wait = std::get_if<WaitMark>(&step.what)) return unmarked.count(wait->mark) == 0;
    const auto* wait = std::get_if<ExternalWait>(&step.what);
    if (wait == nullptr) return true;
    if (wait->signal->given) {
      if (sanitizer::on()) passed.push_back(wait->signal->order);
      return true;
    }
    awaited.push_back(wait->signal);
    return false;
  }

  void run(const Step& step) const {
    if (const auto* task = std::get_if<TaskStep>(&step.what)) {
      std::optional<OnStream> aside;
      if (step.stream != program_->origin) aside.emplace(program_->device, step.stream);
      run_step(*task, program_->device);
    } else if (const auto* reset = std::get_if<ExternalReset>(&step.what)) {
      Queues::all().reset(reset->signal);
    } else if (const auto* record = std::get_if<ExternalRecord>(&step.what)) {
      if (sanitizer::on()) {
        record->signal->order = sanitizer::Sanitizer::get().record(program_->device, current_stream(program_->device));
      }
      Queues::all().signal(record->signal);
    }
  }

  std::shared_ptr<const Program> program_;
  std::vector<size_t> left_;
  std::optional<sanitizer::Origin> origin_;
};

}  // namespace

namespace {

// On the card nothing keeps what a graph reads; here the graph keeps the storages that it uses, and not the bytes that
// they stand on: after resize_ those are free, or another tensor's. The sanitizer tells of both, each once.
void check_inputs(Program& program) {
  size_t lost = 0;  // bytes
  for (const GraphInput& input : program.inputs) {
    if (!input.pooled && input.moved()) lost = input.bytes;
  }
  if (sanitizer::on() && program.footprint) {
    std::erase_if(program.inputs, [&](const GraphInput& input) {
      const bool moved = input.moved();
      if (!moved && input.others() > 0) return false;
      sanitizer::Sanitizer::get().input_lost(reinterpret_cast<uintptr_t>(input.at), input.bytes, moved,
                                             program.footprint->captured);
      return !moved;
    });
  }
  TORCH_CHECK(lost == 0, "NPUGraph.replay: a tensor that the graph uses has lost the memory that it had in the ",
              "capture, ", lost, " bytes (by resize_ and the like). copy_ new values into it instead.");
}

}  // namespace

PoolId new_pool(bool by_user) {
  static std::atomic<uint64_t> next{1};
  const uint64_t id = next++;
  return by_user ? PoolId{0, id + (uint64_t{1} << 32)} : PoolId{id, 0};
}

Program::~Program() {
  sanitizer::Sanitizer::get().streams_in_graphs(-streams);
  if (footprint) sanitizer::Sanitizer::get().forget_graph(footprint);
  softnpu::device(device).memory.release_pool(pool);
}

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
  if (Queues::shuffled()) Queues::all().wait_for_device(device);
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
  std::set<StreamId> streams{program->origin};
  for (const Step& step : program->steps) streams.insert(step.stream);
  program->streams = static_cast<int64_t>(streams.size());
  sanitizer::Sanitizer::get().streams_in_graphs(program->streams);
  program->footprint = capture->footprint;
  if (program->footprint) sanitizer::Sanitizer::get().end_capture(program->footprint);
  program->inputs = inputs_of(program->steps, program->pool);
  program_ = std::move(program);
}

void NpuGraph::replay() {
  TORCH_CHECK(program_ != nullptr, "Called NPUGraph::replay without a preceding successful capture.");
  ensure_started();  // not in a forked process
  const int device = program_->device;
  const StreamId stream = current_stream(device);
  if (Capture* outer = Capture::of(device, stream)) {
    const std::string text = "a graph cannot be replayed on stream " + std::to_string(stream) +
                             ", which is being captured into another one.";
    outer->fail(acl::kStreamCaptured, text);
    raise_acl("aclmdlRIExecuteAsync", acl::kStreamCaptured, text);
  }
  const OnStream here(device, stream);
  check_inputs(*program_);
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

}  // namespace softnpu
