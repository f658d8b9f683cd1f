// The c10d backend `hccl`: collectives on NPU tensors over gloo, without copying a byte on this side.
//
// NPU tensors are aliased to CPU tensors (torch/dispatch/cpu_alias.h) and given to an inner backend: gloo, and shared
// memory where all ranks are on one host (one_host.h). Data that is only moved travels as bytes, so that every dtype
// works; reductions use the inner backend's arithmetic where it has the dtype, and exchange plus local arithmetic in
// fp32 where it has not (reduce_scatter).
#pragma once

#include <map>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <unordered_map>
#include <variant>

#include "hccl/agreement.h"
#include "hccl/work.h"
#include "torch/compat.h"

namespace softnpu::hccl {

using c10::intrusive_ptr;
using c10d::kUnsetTimeout;
using c10d::Work;
using Tensors = std::vector<at::Tensor>;
using Lists = std::vector<Tensors>;
using Splits = std::vector<int64_t>;

struct HcclOptions final : compat::WithRanks<c10d::Backend::Options> {
  using Value = std::variant<bool, int64_t, double, std::string>;
  HcclOptions() : WithRanks("hccl") {}
  Milliseconds op_timeout{10000};
  bool is_high_priority_stream = false;
  std::string group_id;
  std::unordered_map<std::string, Value> hccl_config;
  bool strict = true;       // refuse what HCCL refuses
  bool wide_types = false;  // Ascend950: reductions of float64 and uint64 too
};

// Makes the inner backend; set from Python, which knows gloo's devices.
using MakeInner = std::function<intrusive_ptr<c10d::Backend>(const intrusive_ptr<c10d::Store>&, int rank, int size,
                                                             Milliseconds timeout)>;
extern MakeInner make_inner;

// What the sanitizer asks about the results of a collective on this rank.
struct CollectiveFacts {
  bool reads = false;       // they are inputs too
  bool writes = true;       // false: they are inputs alone
  std::string detail = {};  // what all ranks must agree on, beside shape and dtype
};

class ProcessGroupHCCL final : public compat::WithOptions<c10d::Backend> {
 public:
  ProcessGroupHCCL(const intrusive_ptr<c10d::Store>& store, int rank, int size, intrusive_ptr<HcclOptions> options);
  ~ProcessGroupHCCL() override;

  const std::string getBackendName() const override { return "hccl"; }
  intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }
  intrusive_ptr<HcclOptions> options() const { return options_; }
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  intrusive_ptr<Work> endCoalescing() override;
  void setTimeout(Milliseconds timeout) override;
  void add_ephemeral_timeout(Milliseconds timeout) { ephemeral_ += timeout; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  c10d::ErrorType getError() override;
  void abort() override;
  void shutdown() override;

  // Upstream's own: the name by which operators find the group, and communicators made anew.
  std::string comm_name(int rank, bool init);
  void set_comm_name(const std::string& name);
  void abort_and_clear(const std::string& reason);
  static intrusive_ptr<ProcessGroupHCCL> find(const std::string& name);
  // Memory that other ranks write without asking, by rank: this rank's own on the device, the others' as host memory.
  using Windows = std::map<int, at::Tensor>;
  const Windows& windows() const { return windows_; }
  void set_windows(Windows windows) { windows_ = std::move(windows); }

  intrusive_ptr<Work> broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  intrusive_ptr<Work> allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  intrusive_ptr<Work> allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override;
  intrusive_ptr<Work> reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  intrusive_ptr<Work> allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                const c10d::AllgatherOptions& opts) override;
  intrusive_ptr<Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                      const c10d::AllgatherOptions& opts) override;
  intrusive_ptr<Work> allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts) override;
  intrusive_ptr<Work> allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                      const c10d::AllgatherOptions& opts) override;
  intrusive_ptr<Work> allgather_uneven(at::Tensor& output, at::Tensor& input, Splits splits,
                                       const c10d::AllgatherOptions& opts);
  intrusive_ptr<Work> gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override;
  intrusive_ptr<Work> scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                              const c10d::ScatterOptions& opts) override;
  intrusive_ptr<Work> reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                     const c10d::ReduceScatterOptions& opts) override;
  intrusive_ptr<Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                           const c10d::ReduceScatterOptions& opts) override;
  intrusive_ptr<Work> reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                      const c10d::ReduceScatterOptions& opts) override;
  intrusive_ptr<Work> reduce_scatter_uneven(at::Tensor& output, at::Tensor& input, Splits splits,
                                            const c10d::ReduceScatterOptions& opts);
  intrusive_ptr<Work> alltoall_base(at::Tensor& output, at::Tensor& input, Splits& output_splits, Splits& input_splits,
                                    const c10d::AllToAllOptions& opts) override;
  intrusive_ptr<Work> alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override;
  intrusive_ptr<Work> send(Tensors& tensors, int peer, int tag) override;
  intrusive_ptr<Work> recv(Tensors& tensors, int peer, int tag) override;
  intrusive_ptr<Work> recvAnysource(Tensors& tensors, int tag) override;
  intrusive_ptr<Work> batch_isend_irecv(const std::vector<std::string>& kinds, Tensors& tensors, const Splits& ranks);
  intrusive_ptr<Work> barrier(const c10d::BarrierOptions& opts) override;
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all) override;

 private:
  struct Reduction {  // how gloo is asked for one
    at::Tensor wire;
    c10d::ReduceOp op;
    std::function<void()> finish;
  };
  intrusive_ptr<c10d::Backend> inner();
  void connect();
  void drop_inner();
  Milliseconds timeout_for(Milliseconds asked);
  CollectiveCall call(c10d::OpType type, const char* name, Milliseconds timeout, int peer = -1);
  intrusive_ptr<Work> launch(const CollectiveCall& call, Tensors outputs, const intrusive_ptr<Work>& inner,
                             std::function<void()> finish = nullptr);
  // `begin` gives the message to the transport, which may refuse it: the connection is lost.
  intrusive_ptr<Work> message(const CollectiveCall& call, Tensors outputs, Tensors wire,
                              const std::function<intrusive_ptr<Work>(Tensors&)>& begin);
  intrusive_ptr<Work> note(intrusive_ptr<Work> work);
  // Every operation is a launch (torch/dispatch/launch.h). `lists[0]` are the outputs, written in full if `fresh`;
  // `run` is called with the lists now or, on a stream that is blocked or captured, when it is time.
  using Run = std::function<intrusive_ptr<Work>(Lists&)>;
  static std::string at_root(int64_t rank) { return ", root " + std::to_string(rank); }
  intrusive_ptr<Work> submit(c10d::OpType type, const char* name, Lists lists, bool fresh, Run run,
                             const CollectiveFacts& facts = {});
  intrusive_ptr<Work> defer(c10d::OpType type, const char* name, int device, Lists lists, bool fresh, Run run);
  void check(const at::Tensor& tensor) const;
  void check_one(const Tensors& tensors) const;
  void check_reduction(const char* name, const at::Tensor& tensor, const c10d::ReduceOp& op, bool bytes_too) const;
  Reduction reduction(const at::Tensor& flat, const c10d::ReduceOp& op, bool in_place) const;
  // Exchanges flat inputs by `counts` elements a rank and reduces what arrives into `output`.
  intrusive_ptr<Work> exchange_and_reduce(const CollectiveCall& call, const at::Tensor& output, at::Tensor input,
                                          const Splits& counts, const c10d::ReduceOp& op);
  intrusive_ptr<Work> exchange_bytes(const CollectiveCall& call, Tensors results, at::Tensor received,
                                     const at::Tensor& sent, Splits receive, Splits send, std::function<void()> finish);

  const intrusive_ptr<c10d::Store> store_;
  const intrusive_ptr<HcclOptions> options_;
  std::mutex mutex_;
  intrusive_ptr<c10d::Backend> inner_;
  std::shared_ptr<Peers> peers_;
  std::unique_ptr<Agreement> agreement_;  // with the sanitizer
  int generation_ = 0;
  std::atomic<bool> closed_{false};
  bool used_ = false;  // whether upstream would have made its communicator by now
  std::string name_;
  std::atomic<uint64_t> sequence_{0};
  Milliseconds ephemeral_{0};
  bool coalescing_ = false;
  std::vector<intrusive_ptr<Work>> coalesced_;
  Windows windows_;
  std::shared_ptr<const std::vector<int64_t>> members_;  // global ranks, in a plan
};

}  // namespace softnpu::hccl
