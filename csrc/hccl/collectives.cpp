// The collectives and messages: each asks the inner backend once, and may compute a little when the answer is there.
#include <ATen/ATen.h>

#include "hccl/errors.h"
#include "hccl/process_group.h"
#include "torch/border.h"

namespace softnpu::hccl {

namespace {

using c10d::OpType;
using c10d::ReduceOp;

// A CPU tensor on the bytes of an NPU tensor (inside a kernel: the tensor, which is one), that may be viewed.
at::Tensor on_host(const at::Tensor& tensor) {
  if (!on_npu(tensor)) {
    return at::Tensor::wrap_tensor_impl(
        tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0), true));
  }
  at::Tensor alias = cpu_alias(tensor);
  if (!alias.is_inference()) alias.unsafeGetTensorImpl()->set_version_counter(c10::VariableVersion(0));
  return alias;
}

// The tensor's memory as one row of a CPU tensor, in its own dtype or as bytes.
at::Tensor flat(const at::Tensor& tensor, bool as_bytes = false) {
  at::Tensor host = on_host(tensor);
  c10::TensorImpl& impl = *host.unsafeGetTensorImpl();
  const int64_t unit = as_bytes ? static_cast<int64_t>(impl.itemsize()) : 1;
  const int64_t offset = impl.storage_offset() * unit, count = impl.numel() * unit;
  if (as_bytes) impl.set_storage_and_dtype(impl.storage(), caffe2::TypeMeta::Make<uint8_t>());
  impl.set_storage_offset(offset);
  impl.set_sizes_contiguous({count});
  return host;
}

at::Tensor bytes(const at::Tensor& tensor) { return flat(tensor, true); }

Tensors bytes(const Tensors& tensors) {
  Tensors all;
  for (const auto& tensor : tensors) all.push_back(bytes(tensor));
  return all;
}

Splits sizes_of(const Tensors& rows) {
  Splits sizes;
  for (const auto& row : rows) sizes.push_back(row.numel());
  return sizes;
}

// Splits of dimension 0 (equal ones where none are given), in units of `unit` a row.
Splits splits_of(Splits splits, const at::Tensor& tensor, int ranks, int64_t unit) {
  HCCL_CHECK(tensor.dim() >= 1, NotSupport, "Scalar tensors (0-dim tensors) cannot be split across a group");
  if (splits.empty()) {
    HCCL_CHECK(tensor.size(0) % ranks == 0, Param, "Tensor's dim 0 does not divide equally across group size");
    splits.assign(static_cast<size_t>(ranks), tensor.size(0) / ranks);
  }
  HCCL_CHECK(splits.size() == static_cast<size_t>(ranks), Type, "Number of tensor splits not equal to group size");
  int64_t sum = 0;
  for (auto& split : splits) sum += std::exchange(split, split * unit);
  HCCL_CHECK(sum == tensor.size(0), Type, "Split sizes doesn't match total dim 0 size");
  return splits;
}

int64_t row_of(const at::Tensor& tensor) {  // elements of one row
  int64_t row = 1;
  for (int64_t d = 1; d < tensor.dim(); ++d) row *= tensor.size(d);
  return row;
}

void premultiply(at::Tensor& tensor, const ReduceOp& op) {
  const auto* by = reinterpret_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  if (by->tensor_factor.defined()) {
    const auto factor = by->tensor_factor;
    tensor.mul_(on_host(factor));
  } else {
    tensor.mul_(by->double_factor);
  }
}

void average(const at::Tensor& sum, int ranks) {
  if (at::isIntegralType(sum.scalar_type(), true)) {
    sum.div_(ranks, "trunc");
  } else {
    sum.div_(ranks);
  }
}

// Reduces the rows of a matrix; half precision in fp32, rounded once.
at::Tensor reduce_rows(const at::Tensor& rows, const ReduceOp& op, int ranks) {
  const auto type = rows.scalar_type();
  const bool half = type == at::kHalf || type == at::kBFloat16;
  if (op == ReduceOp::MIN) return rows.amin(0);
  if (op == ReduceOp::MAX || type == at::kBool) return op == ReduceOp::PRODUCT ? rows.amin(0) : rows.amax(0);
  const auto wide = half ? at::kFloat : type;
  if (op == ReduceOp::PRODUCT) return rows.prod(0, false, wide);
  at::Tensor sum = rows.sum(0, false, wide);
  if (op == ReduceOp::AVG) average(sum, ranks);
  return sum;
}

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
  if (put_off(tensors)) {
    return later(OpType::BROADCAST, "broadcast", {tensors}, false,
                 [this, opts](Lists& given) { return broadcast(given[0], opts); });
  }
  const auto backend = inner();
  const Call made = call(OpType::BROADCAST, "broadcast", opts.timeout, static_cast<int>(opts.rootRank));
  auto wire = bytes(tensors);
  auto asked = opts;
  asked.timeout = made.timeout;
  return launch(made, tensors, backend->broadcast(wire, asked));
}

intrusive_ptr<Work> ProcessGroupHCCL::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  check_one(tensors);
  check_reduction("allreduce", tensors[0], opts.reduceOp, true);
  if (put_off(tensors)) {
    return later(OpType::ALLREDUCE, "all_reduce", {tensors}, false,
                 [this, opts](Lists& given) { return allreduce(given[0], opts); });
  }
  const auto backend = inner();
  const Call made = call(OpType::ALLREDUCE, "all_reduce", opts.timeout);
  Reduction plan = reduction(flat(tensors[0]), opts.reduceOp, true);
  auto asked = opts;
  asked.reduceOp = plan.op;
  asked.timeout = made.timeout;
  Tensors wire{plan.wire};
  return launch(made, tensors, backend->allreduce(wire, asked), plan.finish);
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
  if (put_off(tensors)) {
    return later(OpType::REDUCE, "reduce", {tensors}, false,
                 [this, opts](Lists& given) { return reduce(given[0], opts); });
  }
  const auto backend = inner();
  const bool root = opts.rootRank == rank_;
  const Call made = call(OpType::REDUCE, "reduce", opts.timeout, static_cast<int>(opts.rootRank));
  // gloo uses every rank's tensor as scratch; on all but the root it must stay as it is.
  Reduction plan = reduction(flat(tensors[0]), opts.reduceOp, root);
  auto asked = opts;
  asked.reduceOp = plan.op;
  asked.timeout = made.timeout;
  Tensors wire{plan.wire};
  return launch(made, tensors, backend->reduce(wire, asked), root ? plan.finish : nullptr);
}

// --- moving data -----------------------------------------------------------------------------------------------------

intrusive_ptr<Work> ProcessGroupHCCL::exchange_bytes(const Call& made, Tensors results, at::Tensor received,
                                                     const at::Tensor& sent, Splits receive, Splits send,
                                                     std::function<void()> finish) {
  const auto backend = inner();
  c10d::AllToAllOptions asked;
  asked.timeout = made.timeout;
  at::Tensor source = sent;
  return launch(made, std::move(results), backend->alltoall_base(received, source, receive, send, asked),
                std::move(finish));
}

intrusive_ptr<Work> ProcessGroupHCCL::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                const c10d::AllgatherOptions& opts) {
  check_one(inputs);
  HCCL_CHECK(outputs.size() == 1 && outputs[0].size() == static_cast<size_t>(size_), Param,
             "all_gather: expected one list of ", size_, " output tensors");
  for (const auto& output : outputs[0]) {
    check(output);
    HCCL_CHECK(output.scalar_type() == inputs[0].scalar_type(), Param,
               "output tensor must have the same type as input tensor");
  }
  if (put_off(inputs)) {
    return later(OpType::ALLGATHER, "all_gather", {outputs[0], inputs}, true, [this, opts](Lists& given) {
      Lists into{given[0]};
      return allgather(into, given[1], opts);
    });
  }
  const auto backend = inner();
  const Call made = call(OpType::ALLGATHER, "all_gather", opts.timeout);
  const Tensors targets = bytes(outputs[0]);
  const Splits sizes = sizes_of(targets);
  at::Tensor source = bytes(inputs[0]);
  HCCL_CHECK(sizes[rank_] == source.numel(), Param, "all_gather: output ", rank_, " has ", outputs[0][rank_].numel(),
             " elements, the input of this rank ", inputs[0].numel());
  const bool even = std::all_of(sizes.begin(), sizes.end(), [&](int64_t size) { return size == sizes[0]; });
  if (even) {
    std::vector<Tensors> lists{targets};
    Tensors sources{source};
    auto asked = opts;
    asked.timeout = made.timeout;
    return launch(made, outputs[0], backend->allgather(lists, sources, asked));
  }
  int64_t total = 0;
  for (const auto size : sizes) total += size;
  at::Tensor received = at::empty({total}, source.options());
  auto finish = [received, targets, sizes] {
    const auto parts = received.split_with_sizes(sizes);
    for (size_t r = 0; r < targets.size(); ++r) targets[r].copy_(parts[r]);
  };
  return exchange_bytes(made, outputs[0], received, source.repeat({size_}), sizes,
                        Splits(static_cast<size_t>(size_), source.numel()), finish);
}

intrusive_ptr<Work> ProcessGroupHCCL::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::AllgatherOptions& opts) {
  check(output);
  check(input);
  HCCL_CHECK(output.scalar_type() == input.scalar_type(), Param,
             "output tensor must have the same type as input tensor");
  HCCL_CHECK(output.numel() == input.numel() * size_, Param,
             "output tensor size must be equal to world_size times input tensor size");
  if (put_off({input})) {
    return later(OpType::_ALLGATHER_BASE, "all_gather_into_tensor", {{output}, {input}}, true,
                 [this, opts](Lists& given) { return _allgather_base(given[0][0], given[1][0], opts); });
  }
  const auto backend = inner();
  const Call made = call(OpType::_ALLGATHER_BASE, "all_gather_into_tensor", opts.timeout);
  at::Tensor target = bytes(output), source = bytes(input);
  auto asked = opts;
  asked.timeout = made.timeout;
  return launch(made, {output}, backend->_allgather_base(target, source, asked));
}

intrusive_ptr<Work> ProcessGroupHCCL::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                                          const c10d::AllgatherOptions& opts) {
  // outputs[rank][i] receives input i of that rank
  std::vector<intrusive_ptr<Work>> works;
  for (size_t i = 0; i < inputs.size(); ++i) {
    std::vector<Tensors> lists(1);
    for (auto& of_rank : outputs) lists[0].push_back(of_rank.at(i));
    Tensors one{inputs[i]};
    works.push_back(allgather(lists, one, opts));
  }
  return c10::make_intrusive<WorkBatch>(rank_, std::move(works));
}

intrusive_ptr<Work> ProcessGroupHCCL::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                      const c10d::AllgatherOptions& opts) {
  std::vector<intrusive_ptr<Work>> works;
  for (size_t i = 0; i < inputs.size(); ++i) works.push_back(_allgather_base(outputs.at(i), inputs[i], opts));
  return c10::make_intrusive<WorkBatch>(rank_, std::move(works));
}

intrusive_ptr<Work> ProcessGroupHCCL::allgather_uneven(at::Tensor& output, at::Tensor& input, Splits splits,
                                                       const c10d::AllgatherOptions& opts) {
  check(output);
  check(input);
  HCCL_CHECK(output.scalar_type() == input.scalar_type(), Param,
             "output tensor must have the same type as input tensor");
  if (put_off({input})) {
    return later(
        OpType::_ALLGATHER_BASE, "all_gather_into_tensor_uneven", {{output}, {input}}, true,
        [this, splits, opts](Lists& given) { return allgather_uneven(given[0][0], given[1][0], splits, opts); });
  }
  const auto sizes = splits_of(std::move(splits), output, size_, row_of(output) * output.element_size());
  const Call made = call(OpType::_ALLGATHER_BASE, "all_gather_into_tensor_uneven", opts.timeout);
  const at::Tensor source = bytes(input);
  HCCL_CHECK(sizes[rank_] == source.numel(), Param, "all_gather_into_tensor_uneven: the input of rank ", rank_, " has ",
             input.numel(), " elements, its split ", sizes[rank_] / output.element_size());
  return exchange_bytes(made, {output}, bytes(output), source.repeat({size_}), sizes,
                        Splits(static_cast<size_t>(size_), source.numel()), nullptr);
}

intrusive_ptr<Work> ProcessGroupHCCL::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                             const c10d::GatherOptions& opts) {
  check_one(inputs);
  const bool root = opts.rootRank == rank_;
  HCCL_CHECK(!root || (outputs.size() == 1 && outputs[0].size() == static_cast<size_t>(size_)), Param,
             "gather: the root needs one list of ", size_, " output tensors");
  HCCL_CHECK(root || outputs.empty(), Param, "requires empty output on non-root");
  if (put_off(inputs)) {
    return later(OpType::GATHER, "gather", {root ? outputs[0] : Tensors{}, inputs}, true,
                 [this, root, opts](Lists& given) {
                   Lists into(root ? 1 : 0, given[0]);
                   return gather(into, given[1], opts);
                 });
  }
  const Call made = call(OpType::GATHER, "gather", opts.timeout, static_cast<int>(opts.rootRank));
  const at::Tensor source = bytes(inputs[0]);
  Splits send(static_cast<size_t>(size_), 0), receive(static_cast<size_t>(size_), 0);
  send[opts.rootRank] = source.numel();
  Tensors targets;
  if (root) {
    for (const auto& output : outputs[0]) check(output);
    targets = bytes(outputs[0]);
    receive = sizes_of(targets);
  }
  int64_t total = 0;
  for (const auto size : receive) total += size;
  at::Tensor received = at::empty({total}, source.options());
  auto finish = [received, targets, receive] {
    const auto parts = received.split_with_sizes(receive);
    for (size_t r = 0; r < targets.size(); ++r) targets[r].copy_(parts[r]);
  };
  return exchange_bytes(made, root ? outputs[0] : Tensors{}, received, source, receive, send, finish);
}

intrusive_ptr<Work> ProcessGroupHCCL::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                              const c10d::ScatterOptions& opts) {
  check_one(outputs);
  const bool root = opts.rootRank == rank_;
  HCCL_CHECK(!root || (inputs.size() == 1 && inputs[0].size() == static_cast<size_t>(size_)), Param,
             "scatter: the root needs one list of ", size_, " input tensors");
  HCCL_CHECK(root || inputs.empty(), Param, "requires empty input on non-root");
  if (put_off(outputs)) {
    return later(OpType::SCATTER, "scatter", {outputs, root ? inputs[0] : Tensors{}}, true,
                 [this, root, opts](Lists& given) {
                   Lists from(root ? 1 : 0, given[1]);
                   return scatter(given[0], from, opts);
                 });
  }
  const Call made = call(OpType::SCATTER, "scatter", opts.timeout, static_cast<int>(opts.rootRank));
  const at::Tensor target = bytes(outputs[0]);
  Splits send(static_cast<size_t>(size_), 0), receive(static_cast<size_t>(size_), 0);
  receive[opts.rootRank] = target.numel();
  at::Tensor source = at::empty({0}, target.options());
  if (root) {
    for (const auto& input : inputs[0]) check(input);
    const Tensors sources = bytes(inputs[0]);
    send = sizes_of(sources);
    source = at::cat(sources);
  }
  return exchange_bytes(made, outputs, target, source, receive, send, nullptr);
}

intrusive_ptr<Work> ProcessGroupHCCL::alltoall_base(at::Tensor& output, at::Tensor& input, Splits& output_splits,
                                                    Splits& input_splits, const c10d::AllToAllOptions& opts) {
  check(output);
  check(input);
  HCCL_CHECK(output.scalar_type() == input.scalar_type(), Param, "Tensors are not equal in size or data type");
  if (output_splits.empty() && input_splits.empty()) {
    HCCL_CHECK(output.numel() == input.numel(), Param, "Tensors are not equal in size or data type");
  }
  if (put_off({input})) {
    return later(OpType::ALLTOALL_BASE, "all_to_all_single", {{output}, {input}}, true,
                 [this, output_splits, input_splits, opts](Lists& given) {
                   Splits receive = output_splits, send = input_splits;
                   return alltoall_base(given[0][0], given[1][0], receive, send, opts);
                 });
  }
  const int64_t item = input.element_size();
  const auto receive = splits_of(output_splits, output, size_, row_of(output) * item);
  const auto send = splits_of(input_splits, input, size_, row_of(input) * item);
  const Call made = call(OpType::ALLTOALL_BASE, "all_to_all_single", opts.timeout);
  return exchange_bytes(made, {output}, bytes(output), bytes(input), receive, send, nullptr);
}

intrusive_ptr<Work> ProcessGroupHCCL::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) {
  HCCL_CHECK(outputs.size() == static_cast<size_t>(size_), Param,
             "the size of output_tensors and worldsize must equal");
  HCCL_CHECK(outputs.size() == inputs.size(), Param, "the size of input_tensors and output_tensors must equal");
  for (size_t r = 0; r < outputs.size(); ++r) {
    check(outputs[r]);
    check(inputs[r]);
    HCCL_CHECK(outputs[r].device() == outputs[0].device() && inputs[r].device() == outputs[0].device(), Param,
               "tensors must be on the same device");
  }
  if (put_off(inputs)) {
    return later(OpType::ALLTOALL, "all_to_all", {outputs, inputs}, true,
                 [this, opts](Lists& given) { return alltoall(given[0], given[1], opts); });
  }
  const Call made = call(OpType::ALLTOALL, "all_to_all", opts.timeout);
  const Tensors sources = bytes(inputs), targets = bytes(outputs);
  const Splits send = sizes_of(sources), receive = sizes_of(targets);
  int64_t total = 0;
  for (const auto size : receive) total += size;
  at::Tensor received = at::empty({total}, sources[0].options());
  auto finish = [received, targets, receive] {
    const auto parts = received.split_with_sizes(receive);
    for (size_t r = 0; r < targets.size(); ++r) targets[r].copy_(parts[r]);
  };
  return exchange_bytes(made, outputs, received, at::cat(sources), receive, send, finish);
}

// --- reduce_scatter --------------------------------------------------------------------------------------------------

intrusive_ptr<Work> ProcessGroupHCCL::exchange_and_reduce(const Call& made, const at::Tensor& output, at::Tensor input,
                                                          const Splits& counts, const ReduceOp& op) {
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
  if (put_off(outputs)) {
    return later(OpType::REDUCE_SCATTER, "reduce_scatter", {outputs, inputs[0]}, true, [this, opts](Lists& given) {
      Lists from{given[1]};
      return reduce_scatter(given[0], from, opts);
    });
  }
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
  const Call made = call(OpType::REDUCE_SCATTER, "reduce_scatter", opts.timeout);
  return exchange_and_reduce(made, outputs[0], row, counts, opts.reduceOp);
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
  if (put_off({input})) {
    return later(OpType::_REDUCE_SCATTER_BASE, "reduce_scatter_tensor", {{output}, {input}}, true,
                 [this, opts](Lists& given) { return _reduce_scatter_base(given[0][0], given[1][0], opts); });
  }
  const Call made = call(OpType::_REDUCE_SCATTER_BASE, "reduce_scatter_tensor", opts.timeout);
  return exchange_and_reduce(made, output, flat(input), Splits(static_cast<size_t>(size_), output.numel()),
                             opts.reduceOp);
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
  if (put_off({input})) {
    return later(
        OpType::_REDUCE_SCATTER_BASE, "reduce_scatter_tensor_uneven", {{output}, {input}}, true,
        [this, splits, opts](Lists& given) { return reduce_scatter_uneven(given[0][0], given[1][0], splits, opts); });
  }
  const auto counts = splits_of(std::move(splits), input, size_, row_of(input));
  const Call made = call(OpType::_REDUCE_SCATTER_BASE, "reduce_scatter_tensor_uneven", opts.timeout);
  return exchange_and_reduce(made, output, flat(input), counts, opts.reduceOp);
}

// --- messages and barriers -------------------------------------------------------------------------------------------

intrusive_ptr<Work> ProcessGroupHCCL::send(Tensors& tensors, int peer, int tag) {
  check_one(tensors);
  if (put_off(tensors)) {
    return later(OpType::SEND, "send", {{}, tensors}, false,
                 [this, peer, tag](Lists& given) { return send(given[1], peer, tag); });
  }
  const auto backend = inner();
  auto wire = bytes(tensors);
  return message(call(OpType::SEND, "send", kUnsetTimeout, peer), {}, backend->send(wire, peer, tag), wire);
}

intrusive_ptr<Work> ProcessGroupHCCL::recv(Tensors& tensors, int peer, int tag) {
  check_one(tensors);
  if (put_off(tensors)) {
    return later(OpType::RECV, "recv", {tensors}, true,
                 [this, peer, tag](Lists& given) { return recv(given[0], peer, tag); });
  }
  const auto backend = inner();
  auto wire = bytes(tensors);
  return message(call(OpType::RECV, "recv", kUnsetTimeout, peer), tensors, backend->recv(wire, peer, tag), wire);
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
  if (put_off({})) {
    return later(OpType::BARRIER, "barrier", {{}}, false, [this, opts](Lists&) { return barrier(opts); });
  }
  const auto backend = inner();
  const Call made = call(OpType::BARRIER, "barrier", opts.timeout);
  auto asked = opts;
  asked.timeout = made.timeout;
  return launch(made, {}, backend->barrier(asked));
}

void ProcessGroupHCCL::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all) {
  auto asked = opts;
  asked.timeout = timeout_for(opts.timeout);
  inner()->monitoredBarrier(asked, wait_all);
}

}  // namespace softnpu::hccl
