// Watching launches: faults, saturation, dumps and reduced-precision products, without a cost while none is asked for.
//
// A watched operator's NPU kernel is wrapped by one that looks at the arguments before and at the results after the
// kernel it replaced. The wrappers are registered when the first feature that needs them is switched on, and taken
// back when the last one is switched off, so an unwatched launch is exactly what it was.
#include "torch/npu_watch.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/nan_to_num.h>
#include <c10/util/Exception.h>
#include <torch/csrc/utils/pybind.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "device/device.h"
#include "device/faults.h"
#include "torch/border.h"
#include "torch/defer.h"
#include "torch/ivalues.h"
#include "torch/task.h"

namespace py = pybind11;

namespace softnpu {

namespace {

using at::Tensor;
using c10::DispatchKey;
using c10::IValue;

// --- what is switched on ----------------------------------------------------------------------------------------

enum Rounding : int { kKeep = 0, kHf32 = 1, kFp16 = 2 };

struct Watch {
  std::mutex mutex;
  std::atomic<bool> saturate{false}, unsafe{false}, observed{false}, launches{false};
  std::atomic<int> matmul{kKeep}, conv{kKeep};
  py::object observer, error_text;  // guarded by the GIL
  // Made once for each operator and kept: another thread may still run one when it is taken back.
  struct Wrapper {
    c10::KernelFunction kernel;
    bool is_product;
  };
  std::unordered_map<c10::OperatorName, Wrapper> wrappers;
  std::vector<c10::RegistrationHandleRAII> registered;
  bool on_all = false, on_products = false;
  struct Overflow {
    bool set = false;
    std::string by;
  };
  std::array<Overflow, 64> overflow;  // by device, guarded by the mutex
  bool wants_all() const { return saturate || unsafe || observed || launches || Faults::all().active(); }
  bool wants_products() const { return matmul != kKeep || conv != kKeep; }
};

Watch& watch() {
  static auto* state = new Watch;  // holds Python objects: never destroyed
  return *state;
}

// While a hook computes, its own launches are not watched, and autograd does not count what it writes: an operator of
// Python's comes here with autograd's keys still on.
thread_local bool quiet = false;

class Quiet {
 public:
  Quiet() : below_(kAboveBackend) { quiet = true; }
  ~Quiet() { quiet = false; }

 private:
  const c10::impl::ExcludeDispatchKeyGuard below_;
};

// --- products ---------------------------------------------------------------------------------------------------

struct Product {
  bool conv;
  std::vector<size_t> factors;  // the arguments that the cube unit multiplies
};

const Product* product_of(const std::string& name) {
  static const std::unordered_map<std::string, Product> table{
      {"aten::mm", {false, {0, 1}}},
      {"aten::bmm", {false, {0, 1}}},
      {"aten::mv", {false, {0, 1}}},
      {"aten::dot", {false, {0, 1}}},
      {"aten::addmm", {false, {1, 2}}},
      {"aten::addmm_", {false, {1, 2}}},
      {"aten::baddbmm", {false, {1, 2}}},
      {"aten::baddbmm_", {false, {1, 2}}},
      {"aten::addbmm", {false, {1, 2}}},
      {"aten::addbmm_", {false, {1, 2}}},
      {"aten::addmv", {false, {1, 2}}},
      {"aten::addmv_", {false, {1, 2}}},
      {"aten::_addmm_activation", {false, {1, 2}}},
      {"npu::npu_linear", {false, {0, 1}}},
      {"npu::npu_bmmV2", {false, {0, 1}}},
      {"aten::convolution", {true, {0, 1}}},
      {"aten::convolution_overrideable", {true, {0, 1}}},
      {"aten::convolution_backward", {true, {0, 1, 2}}},
      {"aten::convolution_backward_overrideable", {true, {0, 1, 2}}},
      {"npu::npu_conv2d", {true, {0, 1}}},
      {"npu::npu_conv3d", {true, {0, 1}}},
      {"npu::npu_conv_transpose2d", {true, {0, 1}}}};
  const auto found = table.find(name);
  return found == table.end() ? nullptr : &found->second;
}

constexpr int kHf32Mantissa = 11;  // CANN documentation, allow_hf32

// To nearest, ties to even; infinities and NaN stay.
void round_to_hf32(float* data, int64_t begin, int64_t end) {
  constexpr uint32_t dropped = 23 - kHf32Mantissa, special = 0x7f800000u;
  for (int64_t i = begin; i < end; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(data[i]);
    const uint32_t nearest = bits + ((1u << (dropped - 1)) - 1) + ((bits >> dropped) & 1);
    data[i] = std::bit_cast<float>((bits & special) == special ? bits : nearest & ~((1u << dropped) - 1));
  }
}

Tensor rounded(const Tensor& factor, int rounding) {
  Tensor copy = at::empty_like(factor);
  const Tensor bytes = cpu_alias(copy);
  bytes.copy_(rounding == kFp16 ? cpu_alias(factor).to(at::kHalf) : cpu_alias(factor));
  if (rounding == kHf32) {
    float* data = bytes.mutable_data_ptr<float>();  // empty_like leaves no holes
    at::parallel_for(0, bytes.numel(), int64_t{1} << 15,
                     [data](int64_t begin, int64_t end) { round_to_hf32(data, begin, end); });
  }
  return copy;
}

void flip_a_bit(const Tensor& tensor) {  // the first element's highest mantissa bit
  if (tensor.numel() == 0 || !on_npu(tensor)) return;
  void* first = cpu_alias(tensor).mutable_data_ptr();
  switch (tensor.scalar_type()) {
    case at::kFloat:
      *static_cast<uint32_t*>(first) ^= 1u << 22;
      break;
    case at::kDouble:
      *static_cast<uint64_t*>(first) ^= uint64_t{1} << 51;
      break;
    case at::kHalf:
      *static_cast<uint16_t*>(first) ^= 1u << 9;
      break;
    case at::kBFloat16:
      *static_cast<uint16_t*>(first) ^= 1u << 6;
      break;
    default:
      break;
  }
}

// --- saturation -------------------------------------------------------------------------------------------------

bool saturates(const Tensor& tensor) {
  const auto type = tensor.scalar_type();
  return (type == at::kFloat || type == at::kHalf || type == at::kBFloat16) && tensor.layout() == at::kStrided;
}

bool finite(const Tensor& tensor) {
  const Tensor bytes = on_npu(tensor) ? cpu_alias(tensor) : tensor;
  return at::isfinite(bytes).all().item<bool>();
}

void saturate(const Tensor& tensor) {
  const double most = tensor.scalar_type() == at::kHalf       ? 65504.0
                      : tensor.scalar_type() == at::kBFloat16 ? 3.3895313892515355e38
                                                              : std::numeric_limits<float>::max();
  Tensor bytes = cpu_alias(tensor);
  at::nan_to_num_(bytes, 0.0, most, -most);
}

// --- a watched launch -------------------------------------------------------------------------------------------

void observe(int stage, const std::string& name, const Stack& stack, size_t count) {
  const py::gil_scoped_acquire gil;
  if (!watch().observer || watch().observer.is_none()) return;
  py::list tensors;
  each_tensor(stack, count, [&](const Tensor& tensor) { tensors.append(py::cast(tensor)); });
  const py::object observer = watch().observer;
  observer(stage, name, tensors);
}

[[noreturn]] void raise(const std::string& message, int device) {
  std::string text = message;
  {
    const py::gil_scoped_acquire gil;
    if (watch().error_text) text = watch().error_text(message, device).cast<std::string>();
  }
  TORCH_CHECK(false, text);
}

class Watcher final : public c10::OperatorKernel {
 public:
  Watcher(c10::SafeKernelFunction inner, const c10::FunctionSchema& schema)
      : inner_(std::move(inner)),
        name_(schema.name()),
        arguments_(schema.arguments().size()),
        returns_(schema.returns().size()),
        product_(product_of(name_)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    if (quiet) return inner_.callBoxed(op, keys, stack);
    const int device = device_of(*stack);
    if (watch().launches && intercept(op, keys, stack, inner_, device)) return;
    bool was_finite = true;
    {
      const Quiet guard;
      before(device, *stack);
      if (watch().saturate) was_finite = all_finite(*stack);
    }
    inner_.callBoxed(op, keys, stack);
    const Quiet guard;
    after(device, *stack, was_finite);
  }

 private:
  int device_of(const Stack& stack) const {
    int device = -1;
    each_tensor(stack, arguments_, [&](const Tensor& tensor) {
      if (device < 0 && on_npu(tensor)) device = tensor.device().index();
    });
    return device < 0 ? current_device() : device;
  }

  void before(int device, Stack& stack) const {
    if (Faults::all().active()) {
      if (const auto message = Faults::all().at_launch(device)) raise(*message, device);
    }
    if (watch().unsafe) {
      each_tensor(stack, arguments_, [&](const Tensor& tensor) {
        if (!on_npu(tensor) || tensor.layout() != at::kStrided) return;
        const Block* block = block_of(tensor.storage().data_ptr());
        if (block != nullptr && block->unsafe) raise("There is unsafe data in the input tensor.", device);
      });
    }
    if (watch().observed) observe(0, name_, stack, arguments_);
    if (product_ != nullptr) round_factors(stack);
  }

  void round_factors(Stack& stack) const {
    const int rounding = product_->conv ? watch().conv : watch().matmul;
    if (rounding == kKeep) return;
    const size_t first = stack.size() - arguments_;
    for (const size_t i : product_->factors) {
      IValue& value = stack[first + i];
      if (!value.isTensor() || !on_npu(value.toTensor()) || value.toTensor().scalar_type() != at::kFloat) continue;
      value = IValue(rounded(value.toTensor(), rounding));
    }
  }

  bool all_finite(const Stack& stack) const {
    bool ok = true;
    for (size_t i = stack.size() - arguments_; ok && i < stack.size(); ++i) {
      if (stack[i].isDouble()) ok = std::isfinite(stack[i].toDouble());
      each_tensor(stack[i], [&](const Tensor& tensor) {
        if (tensor.defined() && tensor.is_floating_point() && tensor.layout() == at::kStrided)
          ok = ok && finite(tensor);
      });
    }
    return ok;
  }

  void after(int device, const Stack& stack, bool was_finite) const {
    if (product_ != nullptr && Faults::all().active() && Faults::all().product_is_corrupt(device)) {
      if (stack.back().isTensor()) flip_a_bit(stack.back().toTensor());
    }
    if (watch().saturate && was_finite && name_ != "npu::npu_top_k_top_p") {  // its infinities are its result
      each_tensor(stack, returns_, [&](const Tensor& tensor) {
        if (!on_npu(tensor) || !saturates(tensor) || finite(tensor)) return;
        saturate(tensor);
        const std::lock_guard<std::mutex> lock(watch().mutex);
        watch().overflow[static_cast<size_t>(device) % 64] = {true, name_};
      });
    }
    if (watch().observed) observe(1, name_, stack, returns_);
  }

  c10::SafeKernelFunction inner_;
  std::string name_;
  size_t arguments_, returns_;
  const Product* product_;
};

// Operators that only describe memory: no work of the device.
bool is_work(const c10::FunctionSchema& schema) {
  static const std::unordered_set<std::string> none{
      "aten::empty",         "aten::empty_strided", "aten::_efficientzerotensor", "aten::set_", "aten::resize_",
      "aten::record_stream", "aten::is_pinned",     "aten::_reshape_alias"};
  return none.count(schema.name()) == 0 && !is_view(schema);
}

class NoWarnings final : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}
};

// Makes the wrappers of operators that have an NPU kernel; later calls find those registered since.
void make_wrappers(Watch& state) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const bool ours = name.name.rfind("aten::", 0) == 0 || name.name.rfind("npu::", 0) == 0;
    if (!ours || state.wrappers.count(name) > 0) continue;
    const auto op = dispatcher.findOp(name);
    if (!op.has_value() || !op->hasSchema() || !op->hasKernelForDispatchKey(DispatchKey::PrivateUse1)) continue;
    if (!is_work(op->schema())) continue;
    auto watcher =
        std::make_unique<Watcher>(op->getComputedKernelForDispatchKey(DispatchKey::PrivateUse1), op->schema());
    auto kernel = c10::KernelFunction::makeFromBoxedFunctor(std::move(watcher));
    state.wrappers.emplace(name, Watch::Wrapper{std::move(kernel), product_of(name.name) != nullptr});
  }
}

// Wraps the kernels that the switched-on features need, and unwraps the others.
void refresh() {
  Watch& state = watch();
  const std::lock_guard<std::mutex> lock(state.mutex);
  const bool all = state.wants_all(), products = all || state.wants_products();
  if (all == state.on_all && products == state.on_products) return;
  NoWarnings silent;  // the dispatcher warns of every kernel that replaces another
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
  state.registered.clear();
  state.on_all = all;
  state.on_products = products;
  if (!products) return;
  make_wrappers(state);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& [name, wrapper] : state.wrappers) {
    if (!all && !wrapper.is_product) continue;
    state.registered.push_back(dispatcher.registerImpl(name, DispatchKey::PrivateUse1, wrapper.kernel, std::nullopt,
                                                       nullptr, "softnpu watch"));
  }
}

void bind_faults(py::module& m) {
  auto& faults = Faults::all();
  m.def("fault_stop", [&](int device) {
    faults.stop(device);
    refresh();
  });
  m.def("fault_stopped", [&](int device) { return faults.stopped(device); });
  m.def("fault_restart", [&](int device) {
    faults.restart(device);
    refresh();
  });
  m.def("fault_clear", [&] {
    faults.clear();
    refresh();
  });
  m.def("fault_raise", [&](int device, std::string text) {
    faults.raise_at_launch(device, std::move(text));
    refresh();
  });
  m.def("fault_memory", [&](int device, uintptr_t address, size_t size) {
    faults.corrupt_memory(device, {address, size});
    refresh();
  });
  m.def("fault_memory_list", [&](int device) {
    std::vector<std::pair<uintptr_t, size_t>> found;
    for (const MemoryFault& fault : faults.memory_faults(device)) found.emplace_back(fault.address, fault.size);
    return found;
  });
  m.def("fault_memory_keep", [&](int device, const std::vector<std::pair<uintptr_t, size_t>>& left) {
    std::vector<MemoryFault> kept;
    for (const auto& [address, size] : left) kept.push_back({address, size});
    faults.keep_memory_faults(device, std::move(kept));
    refresh();
  });
  m.def("fault_products", [&](int device, int64_t skip) {
    faults.corrupt_products(device, skip);
    refresh();
  });
  m.def("fault_stress", [&](int device, int kind, int result) {
    faults.set_stress_result(device, kind, result);
    refresh();
  });
  m.def("fault_stress_result", [&](int device, int kind) { return faults.stress_result(device, kind); });
  m.def("fault_allocation", [&](int device, int64_t nth) {
    Arena::allocation_fault = [](int index, size_t) { return Faults::all().allocation_fails(index); };
    faults.fail_allocation(device, nth);
    refresh();
  });
  m.def("fault_at_launch", [&](int device) { return faults.at_launch(device); });
}

}  // namespace

void watch_launches() {
  if (watch().launches.exchange(true)) return;
  refresh();
}

void bind_watch(py::module& m) {
  bind_faults(m);
  m.def("watch_saturate", [](bool on) {
    watch().saturate = on;
    refresh();
  });
  m.def("watch_saturating", [] { return watch().saturate.load(); });
  m.def("watch_unsafe", [](bool on) {
    watch().unsafe = on;
    refresh();
  });
  m.def("watch_is_unsafe", [] { return watch().unsafe.load(); });
  m.def("watch_products", [](int matmul, int conv) {
    watch().matmul = matmul;
    watch().conv = conv;
    refresh();
  });
  m.def("watch_observer", [](py::object observer) {
    watch().observed = !observer.is_none();
    watch().observer = std::move(observer);
    refresh();
  });
  m.def("watch_error_text", [](py::object text) { watch().error_text = std::move(text); });
  m.def("overflow_flag", [](int device) {
    const std::lock_guard<std::mutex> lock(watch().mutex);
    return watch().overflow[static_cast<size_t>(device) % 64].set;
  });
  m.def("overflow_operator", [](int device) {
    const std::lock_guard<std::mutex> lock(watch().mutex);
    return watch().overflow[static_cast<size_t>(device) % 64].by;
  });
  m.def("clear_overflow_flag", [](int device) {
    const std::lock_guard<std::mutex> lock(watch().mutex);
    watch().overflow[static_cast<size_t>(device) % 64] = {};
  });
}

}  // namespace softnpu
