#include "hccl/deferred_work.h"

#include <cstring>

#include "device/stream.h"
#include "hccl/work.h"
#include "torch/runtime/sync.h"

namespace softnpu::hccl {

using c10::intrusive_ptr;

DeferredWork::DeferredWork(int rank, c10d::OpType type, std::string name, int device, bool captured,
                           std::vector<at::Tensor> outputs, Start start)
    : Work(rank, type),
      name_(std::move(name)),
      device_(device),
      captured_(captured),
      outputs_(std::move(outputs)),
      start_(std::move(start)),
      begun_(std::make_shared<Signal>("the hccl operation " + name_)) {}

intrusive_ptr<c10d::Work> DeferredWork::put(int rank, c10d::OpType type, const char* name, int device,
                                            std::vector<at::Tensor> outputs, bool fresh, Start start) {
  const StreamId stream = current_stream(device);
  Capture* capture = Capture::of(device, stream);
  auto work =
      c10::make_intrusive<DeferredWork>(rank, type, name, device, capture != nullptr, outputs, std::move(start));
  if (capture == nullptr) {
    Queues::all().launch(device, stream, [work] {
      work->begin();
      return AnyOf{};
    });
    return work;
  }
  capture->check_valid();
  for (const at::Tensor& output : outputs) {
    capture->save(output);
    // Nothing is communicated yet, but kernels that are captured behind it run: zeros are numbers they can stand.
    if (fresh) std::memset(output.mutable_data_ptr(), 0, output.nbytes());
  }
  TaskStep step;
  step.name = name;
  step.actions.emplace_back(HostWork{[work] { work->begin(); }});
  capture->add(stream, std::move(step));
  return work;
}

intrusive_ptr<c10d::Work> DeferredWork::real() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return real_;
}

void DeferredWork::begin() {
  end();  // of the replay before, which nobody may have waited for
  auto started = start_();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    real_ = std::move(started);
  }
  if (!captured_) {
    Queues::all().signal(begun_);
  } else if (opType_ != c10d::OpType::SEND && opType_ != c10d::OpType::RECV) {
    end();  // a replay leaves only messages under way, which the other side may answer later in its graph
  }
}

void DeferredWork::end() {
  const auto work = real();
  if (!work) return;
  auto wait = [&work] { work->wait(); };
  Queues::while_waiting ? Queues::while_waiting(wait) : wait();
}

bool DeferredWork::wait(std::chrono::milliseconds timeout) {
  const StreamId stream = current_stream(device_);
  auto self = intrusive_ptr<DeferredWork>::unsafe_reclaim_from_nonowning(this);
  if (captured_) {
    Capture* capture = Capture::of(device_, stream);
    if (capture == nullptr) return true;  // what a graph does is in order with its replay
    if (capture->footprint && ordered.order) {
      sanitizer::Sanitizer::get().wait(device_, stream, ordered.order, capture->footprint.get());
    }
    TaskStep step;
    step.name = name_ + " wait";
    step.actions.emplace_back(HostWork{[self] { self->end(); }});
    capture->add(stream, std::move(step));
    if (opType_ == c10d::OpType::BARRIER) Capture::forbid_stream_wait(device_, stream, "barrier");
    return true;
  }
  ordered.stream_waits();
  if (const auto work = real()) return work->wait(timeout);
  Queues::all().wait(device_, stream, begun_);
  Queues::all().launch(device_, stream, [self] {
    self->end();
    return AnyOf{};
  });
  if (opType_ == c10d::OpType::BARRIER) wait_for_stream(device_, stream, "barrier");  // its wait holds the host
  return true;
}

bool DeferredWork::isCompleted() {
  const auto work = real();
  return work && work->isCompleted();
}

bool DeferredWork::isSuccess() const {
  const auto work = real();
  return work && work->isSuccess();
}

std::exception_ptr DeferredWork::exception() const {
  const auto work = real();
  return work ? work->exception() : nullptr;
}

void DeferredWork::abort() {
  if (const auto work = real()) work->abort();
}

// Complete at once: whoever uses its value does so on a stream that is behind the operation.
intrusive_ptr<c10::ivalue::Future> DeferredWork::getFuture() {
  wait();
  auto future = make_future(outputs_);
  future->markCompleted(c10::IValue(tensor_list(outputs_)));
  return future;
}

}  // namespace softnpu::hccl
