#include "hccl/work.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <unistd.h>

#include <condition_variable>
#include <optional>
#include <thread>

#include "device/stream.h"
#include "hccl/aside.h"
#include "hccl/cycles.h"
#include "hccl/errors.h"
#include "hccl/interrupt.h"

namespace softnpu::hccl {

namespace {

constexpr Milliseconds kSlice{100};

std::string what(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  } catch (const std::exception& e) {
    return e.what();
  }
}

std::vector<c10::Device> devices_of(const std::vector<at::Tensor>& tensors) {
  std::vector<c10::Device> devices;
  for (const auto& tensor : tensors) {
    if (!tensor.is_cpu() && std::find(devices.begin(), devices.end(), tensor.device()) == devices.end()) {
      devices.push_back(tensor.device());
    }
  }
  return devices;
}

// Works whose futures a backward pass waits for (DistributedDataParallel): nobody waits in WorkHCCL::wait, which looks
// for signals and for failures of others. One thread does so for all of them, as long as there are any.
class FuturePoller {
 public:
  using Look = bool (*)(WorkHCCL&);  // false: the work has ended

  static void add(const c10::intrusive_ptr<WorkHCCL>& work, Look look) {
    static std::mutex mutex;
    static FuturePoller* poller = nullptr;  // never ends: its thread may outlive the program's objects
    const std::lock_guard<std::mutex> lock(mutex);
    if (poller == nullptr || poller->process_ != getpid())
      poller = new FuturePoller(look);  // the child of a fork has no thread
    const std::lock_guard<std::mutex> own(poller->mutex_);
    poller->works_.emplace_back(work);
    poller->any_.notify_one();
  }

 private:
  explicit FuturePoller(Look look) : process_(getpid()), look_(look) {
    std::thread([this] { run(); }).detach();
  }

  void run() {
    while (true) {
      std::vector<Weak> works;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        any_.wait(lock, [&] { return !works_.empty(); });
        works.swap(works_);
      }
      std::this_thread::sleep_for(kSlice);
      std::vector<Weak> left;
      for (const Weak& weak : works) {
        const auto work = weak.lock();
        if (work && look_(*work)) left.push_back(weak);
      }
      const std::lock_guard<std::mutex> lock(mutex_);
      works_.insert(works_.end(), left.begin(), left.end());
    }
  }

  using Weak = c10::weak_intrusive_ptr<WorkHCCL>;
  const pid_t process_;
  const Look look_;
  std::mutex mutex_;
  std::condition_variable any_;
  std::vector<Weak> works_;
};

// Futures that a backward pass asked for complete one at a time, in the order in which their operations ended: what
// their callbacks begin (DistributedDataParallel's hooks) is then begun in the same order on every rank.
class Turn {
 public:
  static uint64_t draw() {
    const std::lock_guard<std::mutex> lock(queue().mutex);
    return queue().drawn++;
  }

  explicit Turn(std::optional<uint64_t> number) : number_(number) {
    if (!number_) return;
    std::unique_lock<std::mutex> lock(queue().mutex);
    queue().changed.wait(lock, [this] { return queue().served == *number_; });
  }
  ~Turn() {
    if (!number_) return;
    const std::lock_guard<std::mutex> lock(queue().mutex);
    ++queue().served;
    queue().changed.notify_all();
  }

 private:
  struct Queue {
    std::mutex mutex;
    std::condition_variable changed;
    uint64_t drawn = 0, served = 0;
  };
  static Queue& queue() {
    static auto* const made = new Queue;  // threads that wait may outlive the program's objects
    return *made;
  }

  const std::optional<uint64_t> number_;
};

}  // namespace

c10::intrusive_ptr<c10::ivalue::Future> make_future(const std::vector<at::Tensor>& tensors) {
  return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), devices_of(tensors));
}

c10::List<at::Tensor> tensor_list(const std::vector<at::Tensor>& tensors) {
  c10::List<at::Tensor> list;
  for (const auto& tensor : tensors) list.push_back(tensor);
  return list;
}

std::function<std::string(int)> code_line;

WorkHCCL::WorkHCCL(CollectiveCall call, std::vector<at::Tensor> outputs, std::shared_ptr<Peers> peers)
    : Work(peers->rank(), call.type),
      call_(std::move(call)),
      outputs_(std::move(outputs)),
      peers_(std::move(peers)),
      begin_(std::chrono::steady_clock::now()) {}

void WorkHCCL::follow(const c10::intrusive_ptr<c10d::Work>& inner, std::function<void()> finish) {
  auto self = c10::intrusive_ptr<WorkHCCL>::unsafe_reclaim_from_nonowning(this);
  inner->getFuture()->addCallback([self, finish = std::move(finish)](c10::ivalue::Future& done) {
    std::exception_ptr error = done.hasError() ? done.exception_ptr() : nullptr;
    if (!error && finish) {
      try {
        const Aside aside;
        finish();
      } catch (const std::exception&) {
        error = std::current_exception();
      }
    }
    self->complete(error, true);
  });
}

void WorkHCCL::carry(c10::intrusive_ptr<c10d::Work> inner, std::vector<at::Tensor> wire) {
  message_ = std::move(inner);
  wire_ = std::move(wire);
}

// A message that nobody waits for arrives all the same, so its memory must live until then.
WorkHCCL::~WorkHCCL() {
  if (!message_ || completed_) return;
  std::thread([message = std::move(message_), wire = std::move(wire_), timeout = call_.timeout] {
    try {
      message->wait(timeout);
    } catch (const std::exception&) {
      // nobody is left to be told
    }
  }).detach();
}

// The callbacks of a future may begin operations and wait for them, which the transport's thread has to carry out: so
// `aside`, on that thread, they run on another one.
void WorkHCCL::complete(std::exception_ptr error, bool aside) {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  std::optional<uint64_t> turn;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (completed_once_) return;
    completed_once_ = true;
    exception_ = error;
    end_ = std::chrono::steady_clock::now();
    future = future_;
    if (future && aside && of_backward_) turn = Turn::draw();
  }
  if (!future || !aside) {
    if (future) complete_future(*future);
    return finish(error);
  }
  std::thread([self = c10::intrusive_ptr<WorkHCCL>::unsafe_reclaim_from_nonowning(this), future, error, turn] {
    const Turn own(turn);
    const auto devices = devices_of(self->outputs_);
    const c10::OptionalDeviceGuard guard(devices.empty() ? std::nullopt : std::optional(devices.front()));
    self->complete_future(*future);
    self->finish(error);
  }).detach();
}

void WorkHCCL::complete_future(c10::ivalue::Future& future) const {
  if (exception_) {
    const auto failure = peers_->failure();  // its reason says more than that the operation was aborted
    future.setErrorIfNeeded(std::make_exception_ptr(C10_BUILD_ERROR(
        DistBackendError, "HCCL " + operation() + " failed: " + (failure ? *failure : what(exception_)))));
    return;
  }
  future.markCompleted(c10::IValue(tensor_list(outputs_)));
}

bool WorkHCCL::isCompleted() {
  if (message_) wait_elsewhere();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (completed_) ordered.host_waits();
  return completed_;
}

bool WorkHCCL::isSuccess() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return completed_ && !exception_;
}

std::exception_ptr WorkHCCL::exception() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return exception_;
}

c10::intrusive_ptr<c10::ivalue::Future> WorkHCCL::getFuture() {
  ordered.stream_waits();  // whoever uses its value does so behind the operation
  if (message_) wait_elsewhere();
  bool done = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (future_) return future_;
    future_ = make_future(outputs_);
    of_backward_ = in_backward();
    done = completed_once_;
  }
  if (done) {
    complete_future(*future_);
  } else if (in_backward()) {
    notice_interrupts();
    FuturePoller::add(c10::intrusive_ptr<WorkHCCL>::unsafe_reclaim_from_nonowning(this), [](WorkHCCL& work) {
      {
        const std::lock_guard<std::mutex> lock(work.mutex_);
        if (work.completed_) return false;
      }
      if (interrupted_in_backward()) {
        work.peers_->interrupted(work.operation());
        work.abort();
      }
      return true;
    });
  }
  return future_;
}

float WorkHCCL::getDuration() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  HCCL_CHECK(completed_, Internal, "getDuration: the operation has not ended yet");
  return std::chrono::duration<float, std::milli>(end_ - begin_).count();
}

void WorkHCCL::abort() {
  if (message_) message_->abort();
  complete(std::make_exception_ptr(C10_BUILD_ERROR(DistBackendError, "the operation was aborted")));
}

bool WorkHCCL::wait(Milliseconds timeout) {
  bool inline_wait = false;
  if (message_ && runs_signal_handlers()) wait_elsewhere();
  if (message_) {
    const std::lock_guard<std::mutex> lock(message_mutex_);
    inline_wait = !elsewhere_;
  }
  const bool done = inline_wait ? wait_for_message(timeout) : wait_for_collective(timeout);
  if (done) ordered.stream_waits();
  if (done && call_.type == c10d::OpType::BARRIER) ordered.host_waits();
  return done;
}

void Ordered::stream_waits() const {
  if (order && sanitizer::on()) sanitizer::Sanitizer::get().wait(device, current_stream(device), order);
}

void Ordered::host_waits() const {
  if (order && sanitizer::on()) sanitizer::Sanitizer::get().host_waits(order);
}

bool WorkHCCL::wait_for_message(Milliseconds timeout) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (completed_ && !exception_) return true;
  }
  const Milliseconds limit = timeout == kNoTimeout ? call_.timeout : timeout;
  std::exception_ptr error;
  peers_->enter(message_.get());
  peers_->look_for_failures();
  bool arrived = false;
  try {
    arrived = message_->wait(limit);
  } catch (const std::exception&) {
    error = std::current_exception();
  }
  peers_->leave(message_.get());
  if (arrived && !error) {
    complete(nullptr);
    return true;
  }
  const auto failure = peers_->failure();
  const std::string reason = error ? what(error) : "the operation was aborted";
  const bool timed_out = reason.find("imed out") != std::string::npos;
  complete(error ? error : std::make_exception_ptr(C10_BUILD_ERROR(DistBackendError, reason)));
  raise(failure ? *failure : reason, timed_out);
}

void WorkHCCL::wait_elsewhere() {
  const std::lock_guard<std::mutex> lock(message_mutex_);
  if (elsewhere_) return;
  {
    const std::lock_guard<std::mutex> state(mutex_);
    if (completed_) return;
  }
  elsewhere_ = true;
  std::thread([self = c10::intrusive_ptr<WorkHCCL>::unsafe_reclaim_from_nonowning(this)] {
    std::exception_ptr error;
    self->peers_->enter(self->message_.get());
    try {
      if (!self->message_->wait(self->call_.timeout)) {
        error = std::make_exception_ptr(C10_BUILD_ERROR(DistBackendError, "the operation was aborted"));
      }
    } catch (const std::exception&) {
      error = std::current_exception();
    }
    self->peers_->leave(self->message_.get());
    self->complete(error);
  }).detach();
}

// The wait of an operation that a signal handler ends with an exception ends with it. The operation cannot be taken
// back, and the other ranks have begun theirs: the group is no use any more, here and there.
void WorkHCCL::heed_signals() {
  try {
    run_signal_handlers();
  } catch (const std::exception&) {
    peers_->interrupted(operation());
    abort();
    throw;
  }
  if (in_backward() && interrupted_in_backward()) {  // the interpreter raises KeyboardInterrupt after the error
    peers_->interrupted(operation());
    abort();
  }
}

bool WorkHCCL::wait_for_collective(Milliseconds timeout) {
  if (in_backward()) notice_interrupts();
  const auto now = std::chrono::steady_clock::now();
  const bool callers = timeout != kNoTimeout;
  const Milliseconds limit = callers ? timeout : call_.timeout;
  const auto deadline = limit == kNoTimeout ? std::chrono::steady_clock::time_point::max()
                        : callers           ? now + limit
                                            : begin_ + limit;
  const auto ended = [&] { return completed_; };
  std::unique_lock<std::mutex> lock(mutex_);
  while (!cv_.wait_until(lock, std::min(deadline, std::chrono::steady_clock::now() + kSlice), ended)) {
    lock.unlock();
    heed_signals();
    const auto time = std::chrono::steady_clock::now();
    if (time >= now + kQuiet) {
      peers_->look_for_failures();
      if (sanitizer::on()) look_for_cycles();
      if (const auto failure = peers_->failure()) raise(*failure, false);
    }
    if (time >= deadline) {
      const std::string reason = "it did not end within " + std::to_string(limit.count()) + " ms";
      // The caller's own patience is no failure of the group: the operation goes on.
      TORCH_CHECK_WITH(DistBackendError, !callers, "HCCL ", operation(), ": ", reason, code_text(Code::Timeout));
      raise(reason, true);
    }
    lock.lock();
  }
  const std::exception_ptr error = exception_;
  lock.unlock();
  if (error) {
    const auto failure = peers_->failure();  // its reason says more than that the operation was aborted
    const std::string reason = failure ? *failure : what(error);
    raise(reason, reason.find("imed out") != std::string::npos);
  }
  return true;
}

std::string WorkHCCL::operation() const {
  std::string text = call_.name;
  if (call_.peer >= 0) {
    const bool sends = call_.type == c10d::OpType::SEND;
    const bool receives = call_.type == c10d::OpType::RECV;
    text += (sends ? " to rank " : receives ? " from rank " : " of root rank ") + std::to_string(call_.peer);
  }
  return text;
}

void WorkHCCL::raise(const std::string& reason, bool timed_out) {
  const bool message = call_.type == c10d::OpType::SEND || call_.type == c10d::OpType::RECV;
  const std::string who = peers_->missing(operation(), message ? call_.peer : -1);
  peers_->fail("the group failed in " + operation() + ": " + who);
  std::string text = "HCCL " + operation() + " (sequence number " + std::to_string(call_.sequence) +
                     ") failed on rank " + std::to_string(rank_) + " of group " + peers_->group() + ": " + who + ". " +
                     reason;
  if (timed_out) text += ". HCCL_EXEC_TIMEOUT and the group's timeout limit how long an operation may take";
  text += code_text(timed_out ? Code::Timeout : Code::Hccl);
  const auto error = std::make_exception_ptr(C10_BUILD_ERROR(DistBackendError, text));
  complete(error);
  std::rethrow_exception(error);
}

WorkBatch::WorkBatch(int rank, std::vector<c10::intrusive_ptr<c10d::Work>> works)
    : Work(rank, c10d::OpType::COALESCED), works_(std::move(works)) {}

bool WorkBatch::isCompleted() {
  bool all = true;
  for (const auto& work : works_) all = work->isCompleted() && all;
  return all;
}

bool WorkBatch::isSuccess() const {
  return std::all_of(works_.begin(), works_.end(), [](const auto& work) { return work->isSuccess(); });
}

std::exception_ptr WorkBatch::exception() const {
  for (const auto& work : works_) {
    if (const auto error = work->exception()) return error;
  }
  return nullptr;
}

bool WorkBatch::wait(Milliseconds timeout) {
  for (const auto& work : works_) work->wait(timeout);
  return true;
}

void WorkBatch::abort() {
  for (const auto& work : works_) work->abort();
}

std::vector<at::Tensor> WorkBatch::result() {
  std::vector<at::Tensor> all;
  for (const auto& work : works_) {
    for (auto& tensor : work->result()) all.push_back(tensor);
  }
  return all;
}

c10::intrusive_ptr<c10::ivalue::Future> WorkBatch::getFuture() {
  const auto outputs = result();
  auto future = make_future(outputs);
  auto left = std::make_shared<std::atomic<size_t>>(works_.size());
  auto done = [future, outputs] {
    if (!future->completed()) future->markCompleted(c10::IValue(tensor_list(outputs)));
  };
  if (works_.empty()) done();
  for (const auto& work : works_) {
    work->getFuture()->addCallback([future, left, done](c10::ivalue::Future& one) {
      if (one.hasError()) future->setErrorIfNeeded(one.exception_ptr());
      if (left->fetch_sub(1) == 1) done();
    });
  }
  return future;
}

}  // namespace softnpu::hccl
