// Above a kernel written in Python. Its autograd kernel is Python too, and is asked only when there is a gradient to
// track; versions of written tensors are counted here.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>

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
    constexpr auto key = c10::DispatchKey::AutogradPrivateUse1;
    keep(op, key, std::make_unique<OnDemand>(compat::autograd_kernel(op, key), op.schema()));
  });
  m.def("count_versions", [](const std::string& name, const std::string& overload) {
    const c10::OperatorHandle op = find(name, overload);
    keep(op, c10::DispatchKey::ADInplaceOrView, std::make_unique<Count>(op.schema()));
  });
}

}  // namespace softnpu
