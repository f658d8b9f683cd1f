// What a graph uses of the program's memory, and how often it refers to it.
#include <set>

#include "torch/dispatch/cpu_alias.h"
#include "torch/dispatch/ivalues.h"
#include "torch/graph/graph.h"

namespace softnpu {

std::vector<GraphInput> inputs_of(const std::vector<Step>& steps, PoolId pool) {
  std::map<c10::StorageImpl*, size_t> held;  // storages of the program
  std::set<const c10::StorageImpl*> seen;    // aliases of them
  auto see = [&](const at::Tensor& tensor) {
    if (!plain(tensor)) return;
    const c10::StorageImpl* alias = tensor.storage().unsafeGetStorageImpl();
    while (c10::StorageImpl* of = kept_by(*alias)) {
      if (!seen.insert(alias).second) return;
      if (kept_by(*of) == nullptr) ++held[of];
      alias = of;
    }
  };
  for (const Step& step : steps) {
    const auto* task = std::get_if<TaskStep>(&step.what);
    if (task == nullptr) continue;
    for (const Action& action : task->actions) {
      const auto* call = std::get_if<KernelCall>(&action);
      if (call == nullptr) continue;
      for (const c10::IValue& value : call->arguments) each_tensor(value, see);
      for (const at::Tensor& result : call->results) see(result);
    }
    if (task->op == nullptr) continue;
    for (const at::Tensor& result : task->op->results) see(result);
  }
  std::vector<GraphInput> inputs;
  for (const auto& [storage, references] : held) {
    if (storage->device_type() != c10::kPrivateUse1 || storage->nbytes() == 0) continue;
    const Block* block = block_of(storage->data_ptr());
    const bool pooled = block != nullptr && block->pool != nullptr && block->pool->owner == pool;
    const auto strong = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage);
    inputs.push_back(
        {c10::weak_intrusive_ptr<c10::StorageImpl>(strong), storage->data(), storage->nbytes(), references, pooled});
  }
  return inputs;
}

}  // namespace softnpu
