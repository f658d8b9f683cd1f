// Operations on streams that do not run now: on a blocked stream they queue, on a capturing one they become steps of
// the graph. As on the card, waiting for such a work holds no host: it orders the current stream behind it.
#pragma once

#include <functional>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "hccl/work.h"
#include "torch/graph/capture.h"

namespace softnpu::hccl {

class DeferredWork final : public c10d::Work {
 public:
  using Start = std::function<c10::intrusive_ptr<c10d::Work>()>;
  // Puts `start` in its place on the device's current stream. `outputs` are written by it; `fresh`: in full.
  static c10::intrusive_ptr<c10d::Work> put(int rank, c10d::OpType type, const char* name, int device,
                                            std::vector<at::Tensor> outputs, bool fresh, Start start);

  DeferredWork(int rank, c10d::OpType type, std::string name, int device, bool captured,
               std::vector<at::Tensor> outputs, Start start);
  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override { wait(); }
  void abort() override;
  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

  Ordered ordered;

 private:
  c10::intrusive_ptr<c10d::Work> real() const;
  void begin();  // the stream has come to it
  void end();    // a stream that waits for it has come to the wait

  const std::string name_;
  const int device_;
  const bool captured_;
  const std::vector<at::Tensor> outputs_;
  const Start start_;
  const SignalPtr begun_;
  c10::intrusive_ptr<c10d::Work> real_;  // of the last run; guarded by the mutex
};

}  // namespace softnpu::hccl
