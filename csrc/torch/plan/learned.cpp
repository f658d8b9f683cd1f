#include "torch/plan/learned.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/enum_tag.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <map>
#include <mutex>
#include <sstream>
#include <unordered_map>

#include "torch/dispatch/ivalues.h"
#include "torch/dispatch/operator_traits.h"
#include "torch/memory/allocator.h"
#include "torch/plan/values.h"

namespace softnpu::plan {

namespace {

using at::Tensor;
using c10::IValue;
using c10::OperatorHandle;
using torch::jit::Stack;

constexpr size_t kMostTried = size_t{64} << 20;  // bytes of all tensors of a call, where temporaries are large
constexpr size_t kMostOthers = size_t{4} << 20;  // of other kernels
constexpr size_t kMostKept = 1 << 16;            // calls that are remembered

struct Result {
  int64_t given = -1;  // the tensor of the arguments that it is
  int64_t made = -1;   // the allocation that it stands on
  at::DimVector sizes, strides;
  int64_t offset = 0;
  at::ScalarType type = at::kFloat;
  bool defined = false;
};

struct Learned {
  HostSteps steps;
  std::vector<Result> results;
  bool usable = false;
};

void describe(std::ostringstream& to, const IValue& value) {
  bool tensors = value.isTensor() || value.isTensorList() || value.isOptionalTensorList();
  if (!tensors) {
    if (!value.isGenerator()) to << value << ';';
    return;
  }
  if (value.isOptionalTensorList()) {
    for (const std::optional<Tensor>& each : value.toOptionalTensorList()) to << each.has_value();
  }
  each_tensor(value, [&](const Tensor& tensor) {
    if (!tensor.defined()) {
      to << "none,";
      return;
    }
    to << tensor.scalar_type() << tensor.sizes() << tensor.strides() << ',';
  });
  to << ';';
}

std::vector<Tensor> tensors_of(const Stack& stack) {
  std::vector<Tensor> all;
  for (const IValue& value : stack) each_tensor(value, [&](const Tensor& tensor) { all.push_back(tensor); });
  return all;
}

bool takes_generator(const c10::Argument& argument) {
  return argument.name() == "generator" && argument.type()->str() == "Generator?";
}

bool has_generator(const c10::FunctionSchema& schema) {
  for (const auto& argument : schema.arguments()) {
    if (takes_generator(argument)) return true;
  }
  return false;
}

Learned learn(const OperatorHandle& op, const Stack& given) {
  Learned found;
  const HostScope host;
  Stack stack(given);
  std::vector<Tensor> copies;
  const std::vector<Tensor> before = tensors_of(given);
  for (size_t i = 0; i < stack.size(); ++i) {  // the program's generators stay as they are
    if (takes_generator(op.schema().arguments()[i])) stack[i] = IValue(at::detail::createCPUGenerator());
  }
  for (IValue& value : stack) {
    map_tensors(value, [&](const Tensor& tensor) {
      Tensor copied = tensor;
      if (tensor.defined()) {
        copied = at::empty_strided(tensor.sizes(), tensor.strides(), at::TensorOptions().dtype(tensor.scalar_type()));
        copied.fill_(is_float(tensor) ? 1 : 0);  // 1.0: a sum of probabilities is not 0
        if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) copied.unsafeGetTensorImpl()->set_wrapped_number(true);
      }
      copies.push_back(copied);
      return copied;
    });
  }
  std::vector<const void*> made;
  try {
    const LearnHostSteps learning(found.steps, made);
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  } catch (const c10::Error&) {  // of ones and zeros: a matrix that is singular
    return found;
  }
  found.usable = true;
  for (size_t i = 0; i < before.size(); ++i) {
    found.usable &= !before[i].defined() || before[i].sizes() == copies[i].sizes();  // it resized a result
  }
  for (const Tensor& tensor : tensors_of(stack)) {
    Result result;
    result.defined = tensor.defined();
    if (result.defined) {
      for (size_t i = 0; i < copies.size(); ++i) {
        if (copies[i].defined() && copies[i].is_same(tensor)) result.given = static_cast<int64_t>(i);
      }
      const void* base = tensor.storage().data();
      for (size_t i = 0; i < made.size(); ++i) {
        if (made[i] == base && base != nullptr) result.made = static_cast<int64_t>(i);
      }
      result.sizes = tensor.sizes();
      result.strides = tensor.strides();
      result.offset = tensor.storage_offset();
      result.type = tensor.scalar_type();
      found.usable &= result.given >= 0 || result.made >= 0 || tensor.numel() == 0;
    }
    found.results.push_back(std::move(result));
  }
  return found;
}

std::vector<Tensor> repeat(const Learned& learned, const std::vector<Tensor>& given) {
  std::vector<c10::DataPtr> held;
  std::vector<size_t> sizes;
  for (const HostStep& step : learned.steps) {
    if (step.freed >= 0) {
      held[static_cast<size_t>(step.freed)].clear();
    } else {
      held.push_back(c10::GetAllocator(c10::kCPU)->allocate(step.bytes));
      sizes.push_back(step.bytes);
    }
  }
  std::vector<Tensor> results;
  std::map<int64_t, c10::Storage> storages;
  for (const Result& result : learned.results) {
    if (!result.defined) {
      results.emplace_back();
    } else if (result.given >= 0) {
      results.push_back(given[static_cast<size_t>(result.given)]);
    } else if (result.made < 0) {
      results.push_back(at::empty_strided(result.sizes, result.strides, at::TensorOptions().dtype(result.type)));
    } else {
      const auto made = static_cast<size_t>(result.made);
      if (storages.count(result.made) == 0) {
        storages.emplace(result.made, c10::Storage(c10::Storage::use_byte_size_t(), sizes[made], std::move(held[made]),
                                                   c10::GetAllocator(c10::kCPU), true));
      }
      Tensor tensor = at::empty({0}, at::TensorOptions().dtype(result.type));
      tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(storages.at(result.made));
      tensor.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes, result.strides, result.offset);
      results.push_back(std::move(tensor));
    }
  }
  return results;
}

}  // namespace

bool answer_learned(const OperatorHandle& op, Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const bool listed = traits_of(schema.name()).large_temporaries;
  const bool seeded = op.hasTag(at::Tag::nondeterministic_seeded) && !has_generator(schema);
  if (!listed && seeded) return false;  // it would draw from the host's generator
  for (const auto& result : schema.returns()) {
    if (!result.type()->isSubtypeOf(*c10::TensorType::get())) return false;
  }
  const Stack given(stack->end() - static_cast<std::ptrdiff_t>(schema.arguments().size()), stack->end());
  size_t bytes = 0;
  std::ostringstream key;
  key << op.operator_name();
  for (const IValue& value : given) {
    describe(key, value);
    each_tensor(value, [&](const Tensor& tensor) { bytes += tensor.defined() ? tensor.nbytes() : 0; });
  }
  if (bytes > (listed ? kMostTried : kMostOthers)) return false;
  static auto* all = new std::unordered_map<std::string, Learned>;
  static std::mutex mutex;
  Learned learned;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = all->find(key.str());
    if (found != all->end()) {
      learned = found->second;
    } else {
      learned = learn(op, given);
      if (all->size() >= kMostKept) all->clear();
      all->emplace(key.str(), learned);
    }
  }
  if (!learned.usable) return false;
  std::vector<Tensor> results = repeat(learned, tensors_of(given));
  torch::jit::drop(*stack, given.size());
  for (Tensor& result : results) stack->emplace_back(std::move(result));
  return true;
}

}  // namespace softnpu::plan
