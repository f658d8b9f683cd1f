// A rank without peers, of a run for shapes alone (torch/plan): a store and a transport for groups of any size in which
// no other process takes part. All other ranks are taken to hold what this one holds.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "torch/compat.h"

namespace softnpu::hccl {

// Keys that this process has set; waiting for those of others ends at once.
class LoneStore final : public c10d::HashStore {
 public:
  c10::intrusive_ptr<c10d::Store> clone();  // an override since 2.8
  using c10d::HashStore::wait;
  void wait(const std::vector<std::string>&, const std::chrono::milliseconds&) override {}
  std::vector<uint8_t> get(const std::string& key) override;
};

// While set on this thread, nothing is moved: the values are not there (torch/plan/values.h).
extern thread_local bool nothing_moves;

class LoneBackend final : public compat::WithOptions<c10d::Backend> {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Work = c10::intrusive_ptr<c10d::Work>;
  LoneBackend(int rank, int size) : WithOptions(rank, size) {}
  const std::string getBackendName() const override { return "lone"; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override {
    return c10::make_intrusive<c10d::Backend::Options>("lone");
  }
  void setTimeout(std::chrono::milliseconds) override {}
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return 0; }

  Work broadcast(Tensors& tensors, const c10d::BroadcastOptions&) override;
  Work allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  Work allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override;
  Work reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  Work allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions&) override;
  Work _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions&) override;
  Work gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions&) override;
  Work scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions&) override;
  Work alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& receive, std::vector<int64_t>& send,
                     const c10d::AllToAllOptions&) override;
  Work send(Tensors& tensors, int, int) override;
  Work recv(Tensors& tensors, int, int) override;
  Work barrier(const c10d::BarrierOptions&) override;
  void monitoredBarrier(const c10d::BarrierOptions&, bool) override {}

 private:
  Work done(Tensors results) const;
  void combine(at::Tensor& tensor, const c10d::ReduceOp& op) const;
};

}  // namespace softnpu::hccl
