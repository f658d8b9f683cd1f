// Collectives of a group whose ranks are processes of one host: through memory that they share. Messages and barriers
// go to the network's backend.
//
// Operations run on a thread of their own, in the order in which they are asked for: that is the order on all ranks.
#pragma once

#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "hccl/segment.h"
#include "torch/compat.h"

namespace softnpu::hccl {

class OneHostBackend final : public compat::WithOptions<c10d::Backend> {
 public:
  using Network = c10::intrusive_ptr<c10d::Backend>;
  using Tensors = std::vector<at::Tensor>;
  using Work = c10::intrusive_ptr<c10d::Work>;
  using Milliseconds = std::chrono::milliseconds;

  OneHostBackend(Network network, std::unique_ptr<Segment> segment, int rank, int size);
  ~OneHostBackend() override;
  const std::string getBackendName() const override { return "one_host"; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override;
  void setTimeout(Milliseconds timeout) override { compat::set_timeout(*network_, timeout); }
  void setSequenceNumberForGroup() override { network_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return network_->getSequenceNumberForGroup(); }
  void shutdown() override;

  // Tensors are contiguous and on the CPU, splits are given, and timeouts are set.
  Work broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  Work allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  Work reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  Work allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override;
  Work _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) override;
  Work alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& receive, std::vector<int64_t>& send,
                     const c10d::AllToAllOptions& opts) override;
  Work send(Tensors& tensors, int to, int tag) override { return network_->send(tensors, to, tag); }
  Work recv(Tensors& tensors, int from, int tag) override { return network_->recv(tensors, from, tag); }
  Work barrier(const c10d::BarrierOptions& opts) override { return network_->barrier(opts); }
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool all) override { network_->monitoredBarrier(opts, all); }

 private:
  class Worker;
  using Body = std::function<void(Worker&, Segment::Time deadline)>;
  Work submit(Tensors results, Milliseconds timeout, Body body);

  const Network network_;
  const std::shared_ptr<Worker> worker_;
};

}  // namespace softnpu::hccl
