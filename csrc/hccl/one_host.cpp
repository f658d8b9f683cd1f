#include "hccl/one_host.h"

#include <ATen/ATen.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include "hccl/aside.h"
#include "hccl/wire.h"
#include "hccl/work.h"

namespace softnpu::hccl {

namespace {

enum Collective : int64_t { kBroadcast = 1, kReduce, kAllReduce, kAllGather, kAllToAll };
constexpr const char* kNames[] = {"nothing", "broadcast", "reduce", "all_reduce", "all_gather", "all_to_all"};

// Up to here every rank reduces all of it, which spares a meeting.
constexpr int64_t kSmall = 4096;
// Elements that are reduced at once: what lies between stays in the cache.
constexpr int64_t kBlock = 16384;

std::string text_of(const Segment::Operation& operation) {
  if (operation.kind <= 0 || operation.kind > kAllToAll) return kNames[0];
  std::string text = kNames[operation.kind];
  if (operation.kind == kAllToAll) return text;
  text += " of " + std::to_string(operation.bytes) + " bytes";
  if (operation.kind == kReduce || operation.kind == kAllReduce) {
    text += std::string(" of ") + c10::toString(static_cast<at::ScalarType>(operation.dtype)) + " by " +
            name_of(static_cast<c10d::ReduceOp::RedOpType>(operation.reduction));
  }
  if (operation.root >= 0) text += ", root " + std::to_string(operation.root);
  return text;
}

void copy(void* to, const void* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

uint8_t* data_of(const at::Tensor& tensor) { return static_cast<uint8_t*>(tensor.data_ptr()); }

// The part of `count` that falls to a rank.
struct Share {
  Share(int64_t count, int rank, int size) {
    const int64_t even = (count + size - 1) / size;
    first = std::min(count, rank * even);
    last = std::min(count, first + even);
  }
  int64_t first, last;
};

// A work that the thread runs.
class Pending final : public c10d::Work {
 public:
  using Tensors = std::vector<at::Tensor>;
  Pending(int rank, Tensors results, std::function<void()> body)
      : c10d::Work(rank), body_(std::move(body)), results_(std::move(results)), future_(make_future(results_)) {}
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  std::vector<at::Tensor> result() override { return results_; }
  bool run() {
    std::exception_ptr error;
    try {
      const Aside aside;
      body_();
    } catch (const std::exception&) {
      error = std::current_exception();
    }
    body_ = nullptr;  // and what it holds
    finish(error);
    if (error) {
      future_->setError(error);
    } else {
      future_->markCompleted(c10::IValue(tensor_list(results_)));
    }
    return !error;
  }

 private:
  std::function<void()> body_;
  const Tensors results_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace

// The thread and the operations. The thread keeps it alive; in the child of a fork, which has no thread, nothing ends.
class OneHostBackend::Worker : public std::enable_shared_from_this<Worker> {
 public:
  Worker(std::unique_ptr<Segment> segment, int rank, int size)
      : segment_(std::move(segment)), rank_(rank), size_(size), process_(getpid()) {}

  Work submit(Tensors results, std::function<void()> body);
  void stop();  // when what has been asked for is done

  void broadcast(const at::Tensor& row, int root, Segment::Time deadline);
  void reduce(const at::Tensor& row, const c10d::ReduceOp& op, int root, Segment::Time deadline);  // root -1: to all
  void gather(const at::Tensor& own, const Tensors& all, Segment::Time deadline);
  void exchange(const at::Tensor& output, const at::Tensor& input, const std::vector<int64_t>& receive,
                const std::vector<int64_t>& send, Segment::Time deadline);

 private:
  void run();
  void meet(const Segment::Operation& operation, bool first, Segment::Time deadline);

  const std::unique_ptr<Segment> segment_;
  const int rank_, size_, process_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<c10::intrusive_ptr<Pending>> queue_;
  bool running_ = false, stopped_ = false;
  std::thread::id thread_;
};

OneHostBackend::OneHostBackend(Network network, std::unique_ptr<Segment> segment, int rank, int size)
    : WithOptions(rank, size),
      network_(std::move(network)),
      worker_(std::make_shared<Worker>(std::move(segment), rank, size)) {}

OneHostBackend::~OneHostBackend() { worker_->stop(); }

c10::intrusive_ptr<c10d::Backend::Options> OneHostBackend::getBackendOptions() {
  return c10::make_intrusive<c10d::Backend::Options>("one_host");
}

void OneHostBackend::shutdown() {
  worker_->stop();
  network_->shutdown();
}

OneHostBackend::Work OneHostBackend::submit(Tensors results, Milliseconds timeout, Body body) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  Worker& worker = *worker_;
  return worker.submit(std::move(results), [&worker, deadline, body = std::move(body)] { body(worker, deadline); });
}

OneHostBackend::Work OneHostBackend::Worker::submit(Tensors results, std::function<void()> body) {
  auto work = c10::make_intrusive<Pending>(rank_, std::move(results), std::move(body));
  const std::lock_guard<std::mutex> lock(mutex_);
  TORCH_CHECK(!stopped_, "the group was shut down");
  queue_.push_back(work);
  changed_.notify_all();
  if (!std::exchange(running_, true)) {
    std::thread thread([self = shared_from_this()] { self->run(); });
    thread_ = thread.get_id();
    thread.detach();
  }
  return work;
}

void OneHostBackend::Worker::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopped_ || !queue_.empty(); });
    if (queue_.empty()) break;
    c10::intrusive_ptr<Pending> work = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    if (!work->run()) segment_->leave();  // it is not where the others are any more
    work.reset();
    lock.lock();
  }
  running_ = false;
  changed_.notify_all();
}

void OneHostBackend::Worker::stop() {
  if (getpid() != process_) return;
  // The thread may need the interpreter's lock, to release a tensor, that this one holds.
  std::optional<pybind11::gil_scoped_release> unlocked;
  if (Py_IsInitialized() && PyGILState_Check()) unlocked.emplace();
  {
    std::unique_lock<std::mutex> lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
    if (thread_ != std::this_thread::get_id()) changed_.wait(lock, [&] { return !running_; });
  }
  segment_->leave();
}

// Before the others' slots of a round are read. In the first one all must have begun the same operation.
void OneHostBackend::Worker::meet(const Segment::Operation& operation, bool first, Segment::Time deadline) {
  if (first) segment_->said(rank_) = operation;
  segment_->meet(deadline);
  if (!first) return;
  for (int r = 0; r < size_; ++r) {
    TORCH_CHECK(segment_->said(r) == operation, "the ranks do not agree: rank ", r, " began ",
                text_of(segment_->said(r)), ", this rank ", text_of(operation));
  }
}

// --- collectives ---------------------------------------------------------------------------------------------------

OneHostBackend::Work OneHostBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  const auto root = static_cast<int>(opts.rootRank);
  return submit(tensors, opts.timeout, [row = tensors.at(0), root](Worker& worker, Segment::Time deadline) {
    worker.broadcast(row, root, deadline);
  });
}

void OneHostBackend::Worker::broadcast(const at::Tensor& row, int root, Segment::Time deadline) {
  const auto total = static_cast<int64_t>(row.nbytes()), slot = static_cast<int64_t>(segment_->slot_bytes());
  int64_t done = 0;
  do {
    const int64_t count = std::min(total - done, slot);
    segment_->begin_round();
    if (rank_ == root) copy(segment_->slot(root), data_of(row) + done, count);
    meet({kBroadcast, 0, 0, root, total}, done == 0, deadline);
    if (rank_ != root) copy(data_of(row) + done, segment_->slot(root), count);
    done += count;
  } while (done < total);
}

OneHostBackend::Work OneHostBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  return submit(tensors, opts.timeout,
                [row = tensors.at(0), op = opts.reduceOp](Worker& worker, Segment::Time deadline) {
                  worker.reduce(row, op, -1, deadline);
                });
}

OneHostBackend::Work OneHostBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  const auto root = static_cast<int>(opts.rootRank);
  return submit(tensors, opts.timeout,
                [row = tensors.at(0), op = opts.reduceOp, root](Worker& worker, Segment::Time deadline) {
                  worker.reduce(row, op, root, deadline);
                });
}

// Each rank reduces its share of a round, in the order of the ranks, so that the result is the same wherever it is
// read.
void OneHostBackend::Worker::reduce(const at::Tensor& row, const c10d::ReduceOp& op, int root, Segment::Time deadline) {
  const auto item = static_cast<int64_t>(row.element_size());
  const int64_t most = static_cast<int64_t>(segment_->slot_bytes()) / item;
  const auto part = [&](int rank, int64_t first, int64_t count) {
    return at::from_blob(segment_->slot(rank) + first * item, {count}, row.options());
  };
  const auto reduced = [&](int64_t first, int64_t count) {
    return reduce_rows(at::from_blob(segment_->slot(0) + first * item, {size_, count}, {most, 1}, row.options()), op,
                       size_);
  };
  const Segment::Operation operation{root < 0 ? kAllReduce : kReduce, static_cast<int64_t>(row.scalar_type()),
                                     static_cast<int64_t>(op.op_), root, row.numel() * item};
  const bool reads = root < 0 || rank_ == root;
  int64_t done = 0;
  do {
    const int64_t count = std::min(row.numel() - done, most);
    segment_->begin_round();
    copy(segment_->slot(rank_), data_of(row) + done * item, count * item);
    meet(operation, done == 0, deadline);
    if (count * item <= kSmall) {
      if (reads && count > 0) row.narrow(0, done, count).copy_(reduced(0, count));
    } else {
      const Share own(count, rank_, size_);
      for (int64_t first = own.first; first < own.last; first += kBlock) {
        const int64_t length = std::min(kBlock, own.last - first);
        part(rank_, first, length).copy_(reduced(first, length));
      }
      segment_->meet(deadline);
      for (int r = 0; reads && r < size_; ++r) {
        const Share share(count, r, size_);
        copy(data_of(row) + (done + share.first) * item, segment_->slot(r) + share.first * item,
             (share.last - share.first) * item);
      }
    }
    done += count;
  } while (done < row.numel());
}

OneHostBackend::Work OneHostBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                               const c10d::AllgatherOptions& opts) {
  return submit(outputs.at(0), opts.timeout,
                [own = inputs.at(0), all = outputs[0]](Worker& worker, Segment::Time deadline) {
                  worker.gather(own, all, deadline);
                });
}

OneHostBackend::Work OneHostBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                     const c10d::AllgatherOptions& opts) {
  return submit({output}, opts.timeout,
                [all = output.view({size_, input.numel()}).unbind(), input](Worker& worker, Segment::Time deadline) {
                  worker.gather(input, all, deadline);
                });
}

void OneHostBackend::Worker::gather(const at::Tensor& own, const Tensors& all, Segment::Time deadline) {
  const auto total = static_cast<int64_t>(own.nbytes()), slot = static_cast<int64_t>(segment_->slot_bytes());
  int64_t done = 0;
  do {
    const int64_t count = std::min(total - done, slot);
    segment_->begin_round();
    copy(segment_->slot(rank_), data_of(own) + done, count);
    meet({kAllGather, 0, 0, -1, total}, done == 0, deadline);
    for (int r = 0; r < size_; ++r) copy(data_of(all[static_cast<size_t>(r)]) + done, segment_->slot(r), count);
    done += count;
  } while (done < total);
}

OneHostBackend::Work OneHostBackend::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& receive,
                                                   std::vector<int64_t>& send, const c10d::AllToAllOptions& opts) {
  return submit({output}, opts.timeout, [output, input, receive, send](Worker& worker, Segment::Time deadline) {
    worker.exchange(output, input, receive, send, deadline);
  });
}

// A slot has one part for each other rank. How many rounds there are is known when all have said what they send.
void OneHostBackend::Worker::exchange(const at::Tensor& output, const at::Tensor& input,
                                      const std::vector<int64_t>& receive, const std::vector<int64_t>& send,
                                      Segment::Time deadline) {
  const int64_t part = static_cast<int64_t>(segment_->slot_bytes()) / (size_ - 1) / 64 * 64;
  const auto part_of = [&](int from, int to) { return segment_->slot(from) + part * (to < from ? to : to - 1); };
  const auto within = [&](int64_t bytes, int64_t round) { return std::clamp(bytes - round * part, int64_t{0}, part); };
  int64_t rounds = 1;
  for (int64_t round = 0; round < rounds; ++round) {
    segment_->begin_round();
    const uint8_t* from = data_of(input);
    for (int r = 0; r < size_; from += send[static_cast<size_t>(r++)]) {
      if (r != rank_) copy(part_of(rank_, r), from + round * part, within(send[static_cast<size_t>(r)], round));
    }
    if (round == 0) std::copy(send.begin(), send.end(), segment_->counts(rank_));
    meet({kAllToAll, 0, 0, -1, 0}, round == 0, deadline);
    for (int r = 0; round == 0 && r < size_; ++r) {
      const int64_t *theirs = segment_->counts(r), expected = receive[static_cast<size_t>(r)];
      TORCH_CHECK(theirs[rank_] == expected, "rank ", r, " sends ", theirs[rank_], " bytes to rank ", rank_,
                  ", which expects ", expected);
      for (int to = 0; to < size_; ++to) {
        if (to != r) rounds = std::max(rounds, (theirs[to] + part - 1) / part);
      }
    }
    uint8_t* into = data_of(output);
    for (int r = 0; r < size_; into += receive[static_cast<size_t>(r++)]) {
      if (r != rank_) copy(into + round * part, part_of(r, rank_), within(receive[static_cast<size_t>(r)], round));
    }
  }
  int64_t from = 0, into = 0;
  for (size_t r = 0; r < static_cast<size_t>(rank_); ++r) from += send[r], into += receive[r];
  copy(data_of(output) + into, data_of(input) + from, send[static_cast<size_t>(rank_)]);
}

}  // namespace softnpu::hccl
