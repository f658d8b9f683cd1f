#include "hccl/lone.h"

#include <ATen/ATen.h>

#include "hccl/work.h"

namespace softnpu::hccl {

thread_local bool nothing_moves = false;

c10::intrusive_ptr<c10d::Store> LoneStore::clone() {
  return c10::intrusive_ptr<LoneStore>::unsafe_reclaim_from_nonowning(this);
}

std::vector<uint8_t> LoneStore::get(const std::string& key) {
  TORCH_CHECK(check({key}), "softnpu plan: the store has no key ", key,
              ": it would come from another rank, and a plan runs without peers.");
  return HashStore::get(key);
}

namespace {

class DoneWork final : public c10d::Work {
 public:
  DoneWork(int rank, std::vector<at::Tensor> results) : Work(rank), results_(std::move(results)) { finish(); }
  bool wait(std::chrono::milliseconds) override { return true; }
  std::vector<at::Tensor> result() override { return results_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future = make_future(results_);
    future->markCompleted(c10::IValue(tensor_list(results_)));
    return future;
  }

 private:
  const std::vector<at::Tensor> results_;
};

void put(at::Tensor to, const at::Tensor& from) {
  if (!nothing_moves) to.copy_(from.view_as(to));
}

}  // namespace

LoneBackend::Work LoneBackend::done(Tensors results) const {
  return c10::make_intrusive<DoneWork>(rank_, std::move(results));
}

void LoneBackend::combine(at::Tensor& tensor, const c10d::ReduceOp& op) const {
  if (nothing_moves) return;
  if (op == c10d::ReduceOp::SUM) tensor.mul_(size_);
  if (op == c10d::ReduceOp::PRODUCT) tensor.pow_(size_);
}

LoneBackend::Work LoneBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions&) { return done(tensors); }

LoneBackend::Work LoneBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  for (at::Tensor& tensor : tensors) combine(tensor, opts.reduceOp);
  return done(tensors);
}

LoneBackend::Work LoneBackend::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) {
  return allreduce(tensors, opts);
}

LoneBackend::Work LoneBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  for (at::Tensor& tensor : tensors) combine(tensor, opts.reduceOp);
  return done(tensors);
}

LoneBackend::Work LoneBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                         const c10d::AllgatherOptions&) {
  for (at::Tensor& output : outputs.at(0)) put(output, inputs.at(0));
  return done(outputs[0]);
}

LoneBackend::Work LoneBackend::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions&) {
  if (!nothing_moves) output.view({size_, -1}).copy_(input.view({1, -1}).expand({size_, -1}));
  return done({output});
}

LoneBackend::Work LoneBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions&) {
  if (outputs.empty()) return done({});
  for (at::Tensor& output : outputs[0]) put(output, inputs.at(0));
  return done(outputs[0]);
}

LoneBackend::Work LoneBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions&) {
  if (!inputs.empty()) put(outputs.at(0), inputs[0].at(static_cast<size_t>(rank_)));
  return done(outputs);
}

// Rank r sends what this one would send to itself.
LoneBackend::Work LoneBackend::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& receive,
                                             std::vector<int64_t>& send, const c10d::AllToAllOptions&) {
  if (nothing_moves || output.numel() == 0) return done({output});
  const auto ranks = static_cast<size_t>(size_), self = static_cast<size_t>(rank_);
  if (receive.empty()) receive.assign(ranks, output.size(0) / size_);
  if (send.empty()) send.assign(ranks, input.size(0) / size_);
  int64_t from = 0, to = 0;
  for (size_t r = 0; r < self; ++r) from += send[r];
  for (size_t r = 0; r < ranks; ++r) {
    const int64_t rows = std::min(receive[r], send[self]);
    if (rows > 0) output.narrow(0, to, rows).copy_(input.narrow(0, from, rows));
    to += receive[r];
  }
  return done({output});
}

LoneBackend::Work LoneBackend::send(Tensors&, int, int) { return done({}); }
LoneBackend::Work LoneBackend::recv(Tensors& tensors, int, int) { return done(tensors); }
LoneBackend::Work LoneBackend::barrier(const c10d::BarrierOptions&) { return done({}); }

}  // namespace softnpu::hccl
