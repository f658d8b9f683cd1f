// Work objects of the hccl backend: wait, is_completed, result, a future that knows the device, and errors that name
// the operation and the peer.
#pragma once

#include <functional>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "device/sanitizer.h"
#include "hccl/peers.h"

namespace softnpu::hccl {

// A future of tensors that knows their devices, and its value.
c10::intrusive_ptr<c10::ivalue::Future> make_future(const std::vector<at::Tensor>& tensors);
c10::List<at::Tensor> tensor_list(const std::vector<at::Tensor>& tensors);

// With the sanitizer: what comes before the end of an operation, on the stream of its communicator.
struct Ordered {
  sanitizer::Order order;
  int device = 0;
  void stream_waits() const;  // the current one
  void host_waits() const;
};

struct CollectiveCall {
  c10d::OpType type;
  std::string name;  // as users know it: all_reduce
  uint64_t sequence = 0;
  int peer = -1;
  Milliseconds timeout{0};  // 0: none
};

class WorkHCCL final : public c10d::Work {
 public:
  WorkHCCL(CollectiveCall call, std::vector<at::Tensor> outputs, std::shared_ptr<Peers> peers);

  // A collective: complete when `inner` is, after `finish` has run.
  void follow(const c10::intrusive_ptr<c10d::Work>& inner, std::function<void()> finish);
  // A message: the inner work has no thread of its own, so whoever waits moves it. Nothing but its end, its timeout or
  // an abort ends that wait, so that the thread which runs Python's signal handlers leaves it to another one.
  void carry(c10::intrusive_ptr<c10d::Work> inner, std::vector<at::Tensor> wire);
  ~WorkHCCL() override;

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(Milliseconds timeout = kNoTimeout) override;
  void synchronize() override {}  // the host has waited: every stream is behind
  void abort() override;
  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  float getDuration() const override;
  uint64_t getSequencenumber() const override { return call_.sequence; }

  Ordered ordered;

 private:
  void complete(std::exception_ptr error, bool aside = false);
  void complete_future(c10::ivalue::Future& future) const;
  bool wait_for_message(Milliseconds timeout);
  bool wait_for_collective(Milliseconds timeout);
  void wait_elsewhere();  // a message that somebody polls, or waits for on the thread of the signals
  void heed_signals();
  std::string operation() const;
  [[noreturn]] void raise(const std::string& reason, bool timed_out);

  friend class ProcessGroupHCCL;  // raises for an operation that could not even begin

  const CollectiveCall call_;
  const std::vector<at::Tensor> outputs_;
  const std::shared_ptr<Peers> peers_;
  const std::chrono::steady_clock::time_point begin_;
  std::chrono::steady_clock::time_point end_;
  c10::intrusive_ptr<c10d::Work> message_;
  std::vector<at::Tensor> wire_;  // what the message stands on
  std::mutex message_mutex_;
  bool elsewhere_ = false;
  bool completed_once_ = false;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  bool of_backward_ = false;  // whether a backward pass asked for it
};

// Several works as one: coalesced collectives, batches of messages.
class WorkBatch final : public c10d::Work {
 public:
  explicit WorkBatch(int rank, std::vector<c10::intrusive_ptr<c10d::Work>> works);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(Milliseconds timeout = kNoTimeout) override;
  void synchronize() override {}
  void abort() override;
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  const std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

}  // namespace softnpu::hccl
