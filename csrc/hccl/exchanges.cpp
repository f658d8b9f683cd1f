// Collectives that move data: gather, scatter, all_to_all.
#include <ATen/ATen.h>

#include "hccl/errors.h"
#include "hccl/wire.h"

namespace softnpu::hccl {

using c10d::OpType;
using c10d::ReduceOp;

// --- moving data -----------------------------------------------------------------------------------------------------

intrusive_ptr<Work> ProcessGroupHCCL::exchange_bytes(const CollectiveCall& made, Tensors results, at::Tensor received,
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
  return submit(OpType::ALLGATHER, "all_gather", {outputs[0], inputs}, true, [=, this](Lists& given) {
    Lists outputs{given[0]};
    Tensors& inputs = given[1];
    const auto backend = inner();
    const CollectiveCall made = call(OpType::ALLGATHER, "all_gather", opts.timeout);
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
  });
}

intrusive_ptr<Work> ProcessGroupHCCL::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::AllgatherOptions& opts) {
  check(output);
  check(input);
  HCCL_CHECK(output.scalar_type() == input.scalar_type(), Param,
             "output tensor must have the same type as input tensor");
  HCCL_CHECK(output.numel() == input.numel() * size_, Param,
             "output tensor size must be equal to world_size times input tensor size");
  return submit(OpType::_ALLGATHER_BASE, "all_gather_into_tensor", {{output}, {input}}, true, [=, this](Lists& given) {
    at::Tensor& output = given[0][0];
    at::Tensor& input = given[1][0];
    const auto backend = inner();
    const CollectiveCall made = call(OpType::_ALLGATHER_BASE, "all_gather_into_tensor", opts.timeout);
    at::Tensor target = bytes(output), source = bytes(input);
    auto asked = opts;
    asked.timeout = made.timeout;
    return launch(made, {output}, backend->_allgather_base(target, source, asked));
  });
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
  return submit(
      OpType::_ALLGATHER_BASE, "all_gather_into_tensor_uneven", {{output}, {input}}, true, [=, this](Lists& given) {
        at::Tensor& output = given[0][0];
        at::Tensor& input = given[1][0];
        const auto sizes = splits_of(std::move(splits), output, size_, row_of(output) * output.element_size());
        const CollectiveCall made = call(OpType::_ALLGATHER_BASE, "all_gather_into_tensor_uneven", opts.timeout);
        const at::Tensor source = bytes(input);
        HCCL_CHECK(sizes[rank_] == source.numel(), Param, "all_gather_into_tensor_uneven: the input of rank ", rank_,
                   " has ", input.numel(), " elements, its split ", sizes[rank_] / output.element_size());
        return exchange_bytes(made, {output}, bytes(output), source.repeat({size_}), sizes,
                              Splits(static_cast<size_t>(size_), source.numel()), nullptr);
      });
}

intrusive_ptr<Work> ProcessGroupHCCL::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                             const c10d::GatherOptions& opts) {
  check_one(inputs);
  const bool root = opts.rootRank == rank_;
  HCCL_CHECK(!root || (outputs.size() == 1 && outputs[0].size() == static_cast<size_t>(size_)), Param,
             "gather: the root needs one list of ", size_, " output tensors");
  HCCL_CHECK(root || outputs.empty(), Param, "requires empty output on non-root");
  auto run = [=, this](Lists& given) {
    Lists outputs(root ? 1 : 0, given[0]);
    Tensors& inputs = given[1];
    const CollectiveCall made = call(OpType::GATHER, "gather", opts.timeout, static_cast<int>(opts.rootRank));
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
  };
  return submit(OpType::GATHER, "gather", {root ? outputs[0] : Tensors{}, inputs}, true, run,
                {false, true, at_root(opts.rootRank)});
}

intrusive_ptr<Work> ProcessGroupHCCL::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                              const c10d::ScatterOptions& opts) {
  check_one(outputs);
  const bool root = opts.rootRank == rank_;
  HCCL_CHECK(!root || (inputs.size() == 1 && inputs[0].size() == static_cast<size_t>(size_)), Param,
             "scatter: the root needs one list of ", size_, " input tensors");
  HCCL_CHECK(root || inputs.empty(), Param, "requires empty input on non-root");
  auto run = [=, this](Lists& given) {
    Tensors& outputs = given[0];
    Lists inputs(root ? 1 : 0, given[1]);
    const CollectiveCall made = call(OpType::SCATTER, "scatter", opts.timeout, static_cast<int>(opts.rootRank));
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
  };
  return submit(OpType::SCATTER, "scatter", {outputs, root ? inputs[0] : Tensors{}}, true, run,
                {false, true, at_root(opts.rootRank)});
}

intrusive_ptr<Work> ProcessGroupHCCL::alltoall_base(at::Tensor& output, at::Tensor& input, Splits& output_splits,
                                                    Splits& input_splits, const c10d::AllToAllOptions& opts) {
  check(output);
  check(input);
  HCCL_CHECK(output.scalar_type() == input.scalar_type(), Param, "Tensors are not equal in size or data type");
  if (output_splits.empty() && input_splits.empty()) {
    HCCL_CHECK(output.numel() == input.numel(), Param, "Tensors are not equal in size or data type");
  }
  return submit(OpType::ALLTOALL_BASE, "all_to_all_single", {{output}, {input}}, true, [=, this](Lists& given) {
    at::Tensor& output = given[0][0];
    at::Tensor& input = given[1][0];
    const int64_t item = input.element_size();
    const auto receive = splits_of(output_splits, output, size_, row_of(output) * item);
    const auto send = splits_of(input_splits, input, size_, row_of(input) * item);
    const CollectiveCall made = call(OpType::ALLTOALL_BASE, "all_to_all_single", opts.timeout);
    return exchange_bytes(made, {output}, bytes(output), bytes(input), receive, send, nullptr);
  });
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
  return submit(OpType::ALLTOALL, "all_to_all", {outputs, inputs}, true, [=, this](Lists& given) {
    Tensors &outputs = given[0], &inputs = given[1];
    const CollectiveCall made = call(OpType::ALLTOALL, "all_to_all", opts.timeout);
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
  });
}

}  // namespace softnpu::hccl
