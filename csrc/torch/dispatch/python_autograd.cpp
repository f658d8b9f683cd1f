// Above a kernel written in Python. Its autograd kernel is Python too, and is asked only when there is a gradient to
// track; versions of written tensors are counted here, and tensors with a conjugate or negative bit become plain ones.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Resize.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "torch/compat.h"
#include "torch/dispatch/ivalues.h"
#include "torch/dispatch/python_kernel.h"

namespace py = pybind11;

namespace softnpu {

namespace {

using torch::jit::Stack;

// The arguments that a schema writes, counted after the call.
class Versions {
 public:
  explicit Versions(const c10::FunctionSchema& schema) : arguments_(schema.arguments().size()) {
    for (size_t i = 0; i < arguments_; ++i) {
      if (writes(schema.arguments()[i])) written_.push_back(i);
    }
  }

  template <class Call>
  void around(Stack* stack, Call call) const {
    std::vector<c10::IValue> written;
    for (size_t i : written_) written.push_back((*stack)[stack->size() - arguments_ + i]);
    call();
    for (const c10::IValue& value : written) each_tensor(value, &bump);
  }

 private:
  static void bump(const at::Tensor& tensor) {
    if (tensor.defined() && !tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
  }

  const size_t arguments_;
  std::vector<size_t> written_;
};

class OnDemand final : public c10::OperatorKernel {
 public:
  OnDemand(compat::AutogradKernel python, const c10::FunctionSchema& schema)
      : python_(std::move(python)), arguments_(schema.arguments().size()), versions_(schema) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    if (wanted(*stack)) return python_(op, keys, stack);
    versions_.around(stack, [&] {
      const at::AutoDispatchBelowAutograd below;
      op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
    });
  }

 private:
  bool wanted(const Stack& stack) const {
    if (!c10::GradMode::is_enabled()) return false;
    bool any = false;
    each_tensor(stack, arguments_, [&](const at::Tensor& tensor) { any |= tensor.requires_grad(); });
    return any;
  }

  const compat::AutogradKernel python_;
  const size_t arguments_;
  const Versions versions_;
};

class Count final : public c10::OperatorKernel {
 public:
  explicit Count(const c10::FunctionSchema& schema) : versions_(schema) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    versions_.around(stack, [&] {
      const at::AutoDispatchBelowADInplaceOrView below;
      op.redispatchBoxed(keys & c10::after_ADInplaceOrView_keyset, stack);
    });
  }

 private:
  const Versions versions_;
};

// For an operator that writes arguments: tensors with the bit of `key` go below it as copies without, and what was
// written comes back. PyTorch's fallback takes for granted that such an operator returns what it writes, and nothing
// before it.
class WithoutBit final : public c10::OperatorKernel {
 public:
  explicit WithoutBit(c10::DispatchKey key) : key_(key) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const auto& arguments = op.schema().arguments();
    std::vector<std::pair<at::Tensor, at::Tensor>> written;  // as given, without the bit
    for (size_t i = 0; i < arguments.size(); ++i) {
      map_tensors((*stack)[stack->size() - arguments.size() + i], [&](at::Tensor given) {
        if (!given.defined() || !given.unsafeGetTensorImpl()->key_set().has(key_)) return given;
        for (const auto& [seen, plain] : written) {
          if (seen.is_same(given)) return plain;
        }
        at::Tensor plain = at::clone(given);
        if (writes(arguments[i])) written.emplace_back(given, plain);
        return plain;
      });
    }
    op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, key_), stack);
    for (const auto& [given, plain] : written) {
      at::native::resize_output(given, plain.sizes());
      given.copy_(plain);
    }
    for (size_t i = stack->size() - op.schema().returns().size(); i < stack->size(); ++i) {
      map_tensors((*stack)[i], [&](at::Tensor result) {
        for (const auto& [given, plain] : written) {
          if (plain.is_same(result)) return given;
        }
        return result;
      });
    }
  }

 private:
  const c10::DispatchKey key_;
};

template <class Kernel>
void keep(const c10::OperatorHandle& op, c10::DispatchKey key, std::unique_ptr<Kernel> kernel) {
  static auto* kept = new std::vector<c10::RegistrationHandleRAII>();  // as long as the process
  kept->push_back(c10::Dispatcher::singleton().registerImpl(
      op.operator_name(), key, c10::KernelFunction::makeFromBoxedFunctor(std::move(kernel)), std::nullopt, nullptr,
      "softnpu"));
}

c10::OperatorHandle find(const std::string& name, const std::string& overload) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
}

}  // namespace

void bind_python_autograd(py::module& m) {
  compat::pass_autograd();
  m.def("differentiate_on_demand", [](const std::string& name, const std::string& overload) {
    const c10::OperatorHandle op = find(name, overload);
    using Key = c10::DispatchKey;
    for (const Key key : {Key::AutogradPrivateUse1, Key::AutogradCPU, Key::AutogradMeta}) {
      keep(op, key, std::make_unique<OnDemand>(compat::autograd_kernel(op, key), op.schema()));
    }
  });
  m.def("count_versions", [](const std::string& name, const std::string& overload) {
    const c10::OperatorHandle op = find(name, overload);
    keep(op, c10::DispatchKey::ADInplaceOrView, std::make_unique<Count>(op.schema()));
  });
  m.def("resolve_bits", [](const std::string& space) {  // of all that is there so far
    auto& dispatcher = c10::Dispatcher::singleton();
    for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
      if (name.getNamespace() != space) continue;
      const auto op = dispatcher.findSchema(name);
      if (!op.has_value()) continue;
      const auto& arguments = op->schema().arguments();
      if (std::none_of(arguments.begin(), arguments.end(), &writes)) continue;
      for (const auto key : {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative}) {
        keep(*op, key, std::make_unique<WithoutBit>(key));
      }
    }
  });
}

}  // namespace softnpu
