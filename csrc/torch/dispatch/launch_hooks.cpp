// The hooks of a launch: faults, unsafe data, dumps, reduced-precision products and saturation. Each is a stage that
// somebody asked for (device/stages.h).
#include "torch/dispatch/launch_hooks.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/nan_to_num.h>
#include <c10/util/Exception.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <mutex>

#include "device/device.h"
#include "device/faults.h"
#include "torch/dispatch/cpu_alias.h"
#include "torch/dispatch/ivalues.h"
#include "torch/dispatch/launch.h"

namespace py = pybind11;

namespace softnpu {

namespace {

using at::Tensor;
using c10::IValue;

// --- what is switched on -----------------------------------------------------------------------------------------

enum Rounding : int { kKeep = 0, kHf32 = 1, kFp16 = 2, kHf32Of950 = 3 };

struct Hooks {
  std::atomic<int> matmul{kKeep}, conv{kKeep};
  py::object observer, error_text;  // guarded by the GIL
  struct Overflow {
    bool set = false;
    std::string by;
  };
  std::mutex mutex;
  std::array<Overflow, 64> overflow;  // by device, guarded by the mutex
};

Hooks& hooks() {
  static auto* state = new Hooks;  // holds Python objects: never destroyed
  return *state;
}

// --- products ----------------------------------------------------------------------------------------------------

// Bits of the mantissa: CANN's page of allow_hf32 and msprobe's references have 11, references of Ascend950's operators
// (op-plugin's of npu_mhc_pre, ops-nn's of convolutions) 10.
constexpr int64_t kHf32Mantissa = 11, kHf32MantissaOf950 = 10;

// To nearest, ties to even; infinities and NaN stay.
void round_to_hf32(float* data, int64_t begin, int64_t end, uint32_t dropped) {
  constexpr uint32_t special = 0x7f800000u;
  for (int64_t i = begin; i < end; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(data[i]);
    const uint32_t nearest = bits + ((1u << (dropped - 1)) - 1) + ((bits >> dropped) & 1);
    data[i] = std::bit_cast<float>((bits & special) == special ? bits : nearest & ~((1u << dropped) - 1));
  }
}

// An operator, so that a capture records it.
Tensor& round_to_hf32_(Tensor& dense, int64_t mantissa) {  // empty_like leaves no holes
  TORCH_CHECK(dense.scalar_type() == at::kFloat && dense.is_non_overlapping_and_dense(),
              "softnpu::round_to_hf32_: argument 'dense': expected a dense tensor of float32, received ",
              dense.scalar_type(), " with strides ", dense.strides());
  TORCH_CHECK(mantissa >= 1 && mantissa < 23,
              "softnpu::round_to_hf32_: argument 'mantissa': expected 1 to 22 bits, received ", mantissa);
  float* data = dense.mutable_data_ptr<float>();
  at::parallel_for(0, dense.numel(), int64_t{1} << 15,
                   [data, dropped = static_cast<uint32_t>(23 - mantissa)](int64_t begin, int64_t end) {
                     round_to_hf32(data, begin, end, dropped);
                   });
  return dense;
}

TORCH_LIBRARY_FRAGMENT(softnpu, m) { m.def("round_to_hf32_(Tensor(a!) dense, int mantissa) -> Tensor(a!)"); }
TORCH_LIBRARY_IMPL(softnpu, CPU, m) { m.impl("round_to_hf32_", &round_to_hf32_); }

Tensor rounded(const Tensor& factor, int rounding) {
  Tensor copy = at::empty_like(factor);
  Tensor bytes = cpu_alias(copy);
  bytes.copy_(rounding == kFp16 ? cpu_alias(factor).to(at::kHalf) : cpu_alias(factor));
  if (rounding == kHf32 || rounding == kHf32Of950) {
    using InPlace = Tensor&(Tensor&, int64_t);
    static const auto op =
        c10::Dispatcher::singleton().findSchemaOrThrow("softnpu::round_to_hf32_", "").typed<InPlace>();
    op.call(bytes, rounding == kHf32 ? kHf32Mantissa : kHf32MantissaOf950);
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
  if (tensor.element_size() == 1) return true;  // 8-bit and 4-bit floats: PyTorch has no test of them
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

// --- arguments and results ---------------------------------------------------------------------------------------

void observe(int stage, const std::string& name, const Stack& stack, size_t count) {
  const py::gil_scoped_acquire gil;
  const py::object observer = hooks().observer;
  if (!observer || observer.is_none()) return;
  py::list tensors;
  each_tensor(stack, count, [&](const Tensor& tensor) { tensors.append(py::cast(tensor)); });
  observer(stage, name, tensors);
}

[[noreturn]] void raise(const std::string& message, int device) {
  std::string text = message;
  {
    const py::gil_scoped_acquire gil;
    if (hooks().error_text) text = hooks().error_text(message, device).cast<std::string>();
  }
  TORCH_CHECK(false, text);
}

// A copy makes what it writes over safe again; all else must not read what was lost.
void refuse_unsafe(const Operation& operation, const Stack& stack, int device) {
  const size_t first = stack.size() - operation.arguments;
  bool written = operation.name == "aten::copy_";
  for (size_t i = first; i < stack.size(); ++i, written = false) {
    each_tensor(stack[i], [&](const Tensor& tensor) {
      if (!on_npu(tensor) || tensor.layout() != at::kStrided) return;
      Block* block = block_of(tensor.storage().data_ptr());
      if (block == nullptr || !block->unsafe) return;
      if (!written) raise("There is unsafe data in the input tensor.", device);
      block->unsafe = false;
    });
  }
}

void round_factors(const Operation& operation, Stack& stack) {
  const int rounding = operation.traits.product == OperatorTraits::kConvolution ? hooks().conv : hooks().matmul;
  if (rounding == kKeep) return;
  const size_t first = stack.size() - operation.arguments;
  for (const size_t i : operation.traits.factors) {
    IValue& value = stack[first + i];
    if (!value.isTensor() || !on_npu(value.toTensor()) || value.toTensor().scalar_type() != at::kFloat) continue;
    value = IValue(rounded(value.toTensor(), rounding));
  }
}

bool all_finite(const Stack& stack, size_t count) {
  bool ok = true;
  for (size_t i = stack.size() - count; ok && i < stack.size(); ++i) {
    if (stack[i].isDouble()) ok = std::isfinite(stack[i].toDouble());
    each_tensor(stack[i], [&](const Tensor& tensor) {
      if (tensor.defined() && tensor.is_floating_point() && tensor.layout() == at::kStrided) ok = ok && finite(tensor);
    });
  }
  return ok;
}

}  // namespace

void raise_fault(int device) {
  if (const auto message = Faults::all().at_launch(device)) raise(*message, device);
}

void OperatorTask::before(uint32_t asked) {
  if ((asked & kUnsafeStage) != 0) refuse_unsafe(operation_, *stack_, device_);
  if ((asked & kObserveStage) != 0) observe(0, operation_.name, *stack_, operation_.arguments);
  if ((asked & kRoundStage) != 0) round_factors(operation_, *stack_);
  if ((asked & kSaturateStage) != 0) was_finite_ = all_finite(*stack_, operation_.arguments);
}

void OperatorTask::after(uint32_t asked) {
  const bool product = operation_.traits.product != OperatorTraits::kNone;
  if ((asked & kFaultStage) != 0 && product && Faults::all().product_is_corrupt(device_)) {
    if (stack_->back().isTensor()) flip_a_bit(stack_->back().toTensor());
  }
  if ((asked & kSaturateStage) != 0 && was_finite_ && !operation_.traits.infinite) {
    each_tensor(*stack_, operation_.returns, [&](const Tensor& tensor) {
      if (!on_npu(tensor) || !saturates(tensor) || finite(tensor)) return;
      saturate(tensor);
      const std::lock_guard<std::mutex> lock(hooks().mutex);
      hooks().overflow[static_cast<size_t>(device_) % 64] = {true, operation_.name};
    });
  }
  if ((asked & kObserveStage) != 0) observe(1, operation_.name, *stack_, operation_.returns);
}

namespace {

void bind_faults(py::module& m) {
  auto& faults = Faults::all();
  m.def("fault_stop", [&](int device) { faults.stop(device); });
  m.def("fault_restart", [&](int device) { faults.restart(device); });
  m.def("fault_clear", [&] { faults.clear(); });
  m.def("fault_raise", [&](int device, std::string text) { faults.raise_at_launch(device, std::move(text)); });
  m.def("fault_memory",
        [&](int device, uintptr_t address, size_t size) { faults.corrupt_memory(device, {address, size}); });
  m.def("fault_memory_list", [&](int device) {
    std::vector<std::pair<uintptr_t, size_t>> found;
    for (const MemoryFault& fault : faults.memory_faults(device)) found.emplace_back(fault.address, fault.size);
    return found;
  });
  m.def("fault_memory_keep", [&](int device, const std::vector<std::pair<uintptr_t, size_t>>& left) {
    std::vector<MemoryFault> kept;
    for (const auto& [address, size] : left) kept.push_back({address, size});
    faults.keep_memory_faults(device, std::move(kept));
  });
  m.def("fault_products", [&](int device, int64_t skip) { faults.corrupt_products(device, skip); });
  m.def("fault_stress", [&](int device, int kind, int result) { faults.set_stress_result(device, kind, result); });
  m.def("fault_stress_result", [&](int device, int kind) { return faults.stress_result(device, kind); });
  m.def("fault_allocation", [&](int device, int64_t nth) {
    CachingAllocator::allocation_fault = [](int index, size_t) { return Faults::all().allocation_fails(index); };
    faults.fail_allocation(device, nth);
  });
  m.def("fault_at_launch", [&](int device) { return faults.at_launch(device); });
}

}  // namespace

void bind_hooks(py::module& m) {
  bind_faults(m);
  m.def("set_saturate", [](bool on) { Stages::set(kSaturateStage, on); });
  m.def("set_unsafe", [](bool on) { Stages::set(kUnsafeStage, on); });
  m.def("is_unsafe", [] { return Stages::asked(kUnsafeStage); });
  m.def("set_product_rounding", [](int matmul, int conv) {
    hooks().matmul = matmul;
    hooks().conv = conv;
    Stages::set(kRoundStage, matmul != kKeep || conv != kKeep);
  });
  m.def("set_launch_observer", [](py::object observer) {
    Stages::set(kObserveStage, !observer.is_none());
    hooks().observer = std::move(observer);
  });
  m.def("set_error_text", [](py::object text) { hooks().error_text = std::move(text); });
  m.def("overflow_flag", [](int device) {
    const std::lock_guard<std::mutex> lock(hooks().mutex);
    return hooks().overflow[static_cast<size_t>(device) % 64].set;
  });
  m.def("overflow_operator", [](int device) {
    const std::lock_guard<std::mutex> lock(hooks().mutex);
    return hooks().overflow[static_cast<size_t>(device) % 64].by;
  });
  m.def("clear_overflow_flag", [](int device) {
    const std::lock_guard<std::mutex> lock(hooks().mutex);
    hooks().overflow[static_cast<size_t>(device) % 64] = {};
  });
}

}  // namespace softnpu
