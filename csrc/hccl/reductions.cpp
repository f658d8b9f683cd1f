// Collectives that reduce: gloo's arithmetic where it has the dtype, else exchange and reduce here.
#include <ATen/ATen.h>

#include "hccl/errors.h"
#include "hccl/wire.h"

namespace softnpu::hccl {

using c10d::OpType;
using c10d::ReduceOp;

namespace {

std::string by(const ReduceOp& op) { return std::string(", ") + name_of(op.op_); }

}  // namespace

ProcessGroupHCCL::Reduction ProcessGroupHCCL::reduction(const at::Tensor& row, const ReduceOp& op,
                                                        bool in_place) const {
  Reduction plan{row, op, nullptr};
  const auto type = row.scalar_type();
  if (type == at::kBool) {  // a sum of booleans is an or, a product an and
    plan.wire = in_place ? row.view(at::kByte) : row.view(at::kByte).clone();
    plan.op = op == ReduceOp::MIN || op == ReduceOp::PRODUCT ? ReduceOp::MIN : ReduceOp::MAX;
    return plan;
  }
  if (type == at::kShort || type == at::kUInt64) {  // types that gloo does not reduce
    plan.wire = row.to(type == at::kShort ? at::kInt : at::kLong);
  } else if (!in_place) {
    plan.wire = row.clone();
  }
  if (op == ReduceOp::PREMUL_SUM) {
    premultiply(plan.wire, op);
    plan.op = ReduceOp::SUM;
  }
  const bool mean = op == ReduceOp::AVG;
  if (mean) plan.op = ReduceOp::SUM;
  const bool back = in_place && plan.wire.data_ptr() != row.data_ptr();
  if (mean || back) {
    plan.finish = [wire = plan.wire, row, mean, back, ranks = size_] {
      if (mean) average(wire, ranks);
      if (back) row.copy_(wire);
    };
  }
  return plan;
}

intrusive_ptr<Work> ProcessGroupHCCL::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  check_one(tensors);
  const bool root = opts.rootRank == rank_;
  auto run = [=, this](Lists& given) {
    Tensors& tensors = given[0];
    const auto backend = inner();
    const CollectiveCall made = call(OpType::BROADCAST, "broadcast", opts.timeout, static_cast<int>(opts.rootRank));
    auto wire = bytes(tensors);
    auto asked = opts;
    asked.timeout = made.timeout;
    return launch(made, tensors, backend->broadcast(wire, asked));
  };
  return submit(OpType::BROADCAST, "broadcast", {tensors}, false, run, {root, !root, at_root(opts.rootRank)});
}

intrusive_ptr<Work> ProcessGroupHCCL::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  check_one(tensors);
  check_reduction("allreduce", tensors[0], opts.reduceOp, true);
  auto run = [=, this](Lists& given) {
    Tensors& tensors = given[0];
    const auto backend = inner();
    const CollectiveCall made = call(OpType::ALLREDUCE, "all_reduce", opts.timeout);
    Reduction plan = reduction(flat(tensors[0]), opts.reduceOp, true);
    auto asked = opts;
    asked.reduceOp = plan.op;
    asked.timeout = made.timeout;
    Tensors wire{plan.wire};
    return launch(made, tensors, backend->allreduce(wire, asked), plan.finish);
  };
  return submit(OpType::ALLREDUCE, "all_reduce", {tensors}, false, run, {true, true, by(opts.reduceOp)});
}

intrusive_ptr<Work> ProcessGroupHCCL::allreduce_coalesced(Tensors& tensors,
                                                          const c10d::AllreduceCoalescedOptions& opts) {
  std::vector<intrusive_ptr<Work>> works;
  for (const auto& tensor : tensors) {
    Tensors one{tensor};
    works.push_back(allreduce(one, opts));
  }
  return c10::make_intrusive<WorkBatch>(rank_, std::move(works));
}

intrusive_ptr<Work> ProcessGroupHCCL::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  check_one(tensors);
  check_reduction("reduce", tensors[0], opts.reduceOp, true);
  const bool root = opts.rootRank == rank_;
  auto run = [=, this](Lists& given) {
    Tensors& tensors = given[0];
    const auto backend = inner();
    const CollectiveCall made = call(OpType::REDUCE, "reduce", opts.timeout, static_cast<int>(opts.rootRank));
    // gloo uses every rank's tensor as scratch; on all but the root it must stay as it is.
    Reduction plan = reduction(flat(tensors[0]), opts.reduceOp, root);
    auto asked = opts;
    asked.reduceOp = plan.op;
    asked.timeout = made.timeout;
    Tensors wire{plan.wire};
    return launch(made, tensors, backend->reduce(wire, asked), root ? plan.finish : nullptr);
  };
  return submit(OpType::REDUCE, "reduce", {tensors}, false, run,
                {true, root, by(opts.reduceOp) + at_root(opts.rootRank)});
}

// --- reduce_scatter --------------------------------------------------------------------------------------------------

intrusive_ptr<Work> ProcessGroupHCCL::exchange_and_reduce(const CollectiveCall& made, const at::Tensor& output,
                                                          at::Tensor input, const Splits& counts, const ReduceOp& op) {
  const at::Tensor target = flat(output);
  HCCL_CHECK(counts[rank_] == target.numel(), Param, made.name, ": the output of rank ", rank_, " has ", target.numel(),
             " elements, its part of the input ", counts[rank_]);
  if (op == ReduceOp::PREMUL_SUM) {
    input = input.clone();
    premultiply(input, op);
  }
  const int64_t item = input.element_size();
  Splits send = counts;
  for (auto& count : send) count *= item;
  const Splits receive(static_cast<size_t>(size_), target.numel() * item);
  const at::Tensor rows = at::empty({size_, target.numel()}, input.options());
  auto finish = [rows, target, op, ranks = size_] {
    if (target.numel() > 0) target.copy_(reduce_rows(rows, op, ranks));
  };
  return exchange_bytes(made, {output}, rows.view({-1}).view(at::kByte), input.view(at::kByte), receive, send, finish);
}

intrusive_ptr<Work> ProcessGroupHCCL::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                     const c10d::ReduceScatterOptions& opts) {
  check_one(outputs);
  HCCL_CHECK(inputs.size() == 1 && !inputs[0].empty(), Param, "reduce_scatter: expected one list of input tensors");
  check_reduction("reduce_scatter", outputs[0], opts.reduceOp, false);
  auto run = [=, this](Lists& given) {
    Tensors& outputs = given[0];
    Lists inputs{given[1]};
    Tensors rows;
    for (const auto& input : inputs[0]) {
      check(input);
      HCCL_CHECK(input.scalar_type() == outputs[0].scalar_type(), Type,
                 "input tensor must be the same type as the output tensor.");
      rows.push_back(flat(input));
    }
    Splits counts = sizes_of(rows);
    const bool even = std::all_of(counts.begin(), counts.end(), [&](int64_t count) { return count == counts[0]; });
    HCCL_CHECK(even || rows.size() == static_cast<size_t>(size_), Param, "reduce_scatter: expected ", size_,
               " input tensors, or any number of one size, but received ", rows.size());
    at::Tensor row = at::cat(rows);
    if (even) {  // upstream takes tensors of one size as one row, and cuts it or fills it with zeros to what it needs
      const int64_t need = size_ * outputs[0].numel();
      row = row.numel() < need ? at::constant_pad_nd(row, {0, need - row.numel()}) : row.narrow(0, 0, need);
      counts.assign(static_cast<size_t>(size_), outputs[0].numel());
    }
    const CollectiveCall made = call(OpType::REDUCE_SCATTER, "reduce_scatter", opts.timeout);
    return exchange_and_reduce(made, outputs[0], row, counts, opts.reduceOp);
  };
  return submit(OpType::REDUCE_SCATTER, "reduce_scatter", {outputs, inputs[0]}, true, run,
                {false, true, by(opts.reduceOp)});
}

intrusive_ptr<Work> ProcessGroupHCCL::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                           const c10d::ReduceScatterOptions& opts) {
  check(output);
  check(input);
  check_reduction("_reduce_scatter_base", input, opts.reduceOp, false);
  HCCL_CHECK(input.scalar_type() == output.scalar_type(), Type,
             "input tensor must be the same type as the output tensor.");
  HCCL_CHECK(input.numel() == output.numel() * size_, Param,
             "input tensor must be the same size as output size times world size");
  auto run = [=, this](Lists& given) {
    at::Tensor& output = given[0][0];
    at::Tensor& input = given[1][0];
    const CollectiveCall made = call(OpType::_REDUCE_SCATTER_BASE, "reduce_scatter_tensor", opts.timeout);
    return exchange_and_reduce(made, output, flat(input), Splits(static_cast<size_t>(size_), output.numel()),
                               opts.reduceOp);
  };
  return submit(OpType::_REDUCE_SCATTER_BASE, "reduce_scatter_tensor", {{output}, {input}}, true, run,
                {false, true, by(opts.reduceOp)});
}

intrusive_ptr<Work> ProcessGroupHCCL::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                      const c10d::ReduceScatterOptions& opts) {
  std::vector<intrusive_ptr<Work>> works;
  for (size_t i = 0; i < inputs.size(); ++i) works.push_back(_reduce_scatter_base(outputs.at(i), inputs[i], opts));
  return c10::make_intrusive<WorkBatch>(rank_, std::move(works));
}

intrusive_ptr<Work> ProcessGroupHCCL::reduce_scatter_uneven(at::Tensor& output, at::Tensor& input, Splits splits,
                                                            const c10d::ReduceScatterOptions& opts) {
  check(output);
  check(input);
  check_reduction("reduce_scatter_tensor_uneven", input, opts.reduceOp, false);
  HCCL_CHECK(input.scalar_type() == output.scalar_type(), Param,
             "output tensor must have the same type as input tensor");
  return submit(
      OpType::_REDUCE_SCATTER_BASE, "reduce_scatter_tensor_uneven", {{output}, {input}}, true, [=, this](Lists& given) {
        at::Tensor& output = given[0][0];
        at::Tensor& input = given[1][0];
        const auto counts = splits_of(std::move(splits), input, size_, row_of(input));
        const CollectiveCall made = call(OpType::_REDUCE_SCATTER_BASE, "reduce_scatter_tensor_uneven", opts.timeout);
        return exchange_and_reduce(made, output, flat(input), counts, opts.reduceOp);
      });
}

}  // namespace softnpu::hccl
