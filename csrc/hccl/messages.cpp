// Messages between two ranks, and barriers.
#include <ATen/ATen.h>

#include "hccl/errors.h"
#include "hccl/wire.h"

namespace softnpu::hccl {

using c10d::OpType;
using c10d::ReduceOp;

// --- messages and barriers -------------------------------------------------------------------------------------------

intrusive_ptr<Work> ProcessGroupHCCL::send(Tensors& tensors, int peer, int tag) {
  check_one(tensors);
  return submit(OpType::SEND, "send", {{}, tensors}, false, [=, this](Lists& given) {
    Tensors& tensors = given[1];
    const auto backend = inner();
    return message(call(OpType::SEND, "send", kUnsetTimeout, peer), {}, bytes(tensors),
                   [&](Tensors& wire) { return backend->send(wire, peer, tag); });
  });
}

intrusive_ptr<Work> ProcessGroupHCCL::recv(Tensors& tensors, int peer, int tag) {
  check_one(tensors);
  return submit(OpType::RECV, "recv", {tensors}, true, [=, this](Lists& given) {
    Tensors& tensors = given[0];
    const auto backend = inner();
    return message(call(OpType::RECV, "recv", kUnsetTimeout, peer), tensors, bytes(tensors),
                   [&](Tensors& wire) { return backend->recv(wire, peer, tag); });
  });
}

intrusive_ptr<Work> ProcessGroupHCCL::recvAnysource(Tensors&, int) {
  HCCL_CHECK(false, NotSupport, "ProcessGroupHCCL does not support recv from any source");
}

intrusive_ptr<Work> ProcessGroupHCCL::batch_isend_irecv(const std::vector<std::string>& kinds, Tensors& tensors,
                                                        const Splits& ranks) {
  HCCL_CHECK(kinds.size() == tensors.size() && kinds.size() == ranks.size(), Param, "batch_isend_irecv: ", kinds.size(),
             " operations, ", tensors.size(), " tensors and ", ranks.size(), " ranks were given");
  std::vector<intrusive_ptr<Work>> works;
  for (size_t i = 0; i < kinds.size(); ++i) {
    Tensors one{tensors[i]};
    HCCL_CHECK(kinds[i] == "isend" || kinds[i] == "irecv", Param, "batch_isend_irecv: unknown operation ", kinds[i]);
    works.push_back(kinds[i] == "isend" ? send(one, static_cast<int>(ranks[i]), 0)
                                        : recv(one, static_cast<int>(ranks[i]), 0));
  }
  return c10::make_intrusive<WorkBatch>(rank_, std::move(works));
}

intrusive_ptr<Work> ProcessGroupHCCL::barrier(const c10d::BarrierOptions& opts) {
  return submit(OpType::BARRIER, "barrier", {{}}, false, [=, this](Lists&) {
    const auto backend = inner();
    const CollectiveCall made = call(OpType::BARRIER, "barrier", opts.timeout);
    auto asked = opts;
    asked.timeout = made.timeout;
    return launch(made, {}, backend->barrier(asked));
  });
}

void ProcessGroupHCCL::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all) {
  auto asked = opts;
  asked.timeout = timeout_for(opts.timeout);
  inner()->monitoredBarrier(asked, wait_all);
}

}  // namespace softnpu::hccl
