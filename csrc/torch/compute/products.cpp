#include "torch/compute/products.h"

#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>

#include "kernels/skinny_matmul.h"
#include "torch/compute/widen.h"
#include "torch/dispatch/ivalues.h"
#include "torch/dispatch/operator_traits.h"
#include "torch/plan/plan.h"

namespace softnpu {

namespace {

using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using c10::Scalar;
using torch::jit::Stack;

// fp32 values in use at once, 16 MiB of them: a quarter of each for the left operand and the result, half for the
// right.
constexpr int64_t kWorkspace = 4 << 20;
constexpr int64_t kLeft = kWorkspace / 4, kRight = kWorkspace / 2, kResult = kWorkspace / 4;
constexpr int64_t kDepth = 8192;  // the most of K in one block
constexpr int64_t kWidth = 4096;  // the most columns in one block
// A matrix from which on reading it is what a product of few rows costs, whatever instructions the CPU has.
constexpr int64_t kWorthReading = 1 << 18;

struct Addition {  // beta * bias + alpha * (a @ b); none without a bias
  Tensor bias;
  Scalar beta = 1, alpha = 1;
  bool plain() const { return beta.equal(1) && alpha.equal(1); }
};

bool fits(const Tensor& a, const Tensor& b) {
  return a.numel() + b.numel() + a.numel() / std::max<int64_t>(a.size(-1), 1) * b.size(-1) <= kWorkspace;
}

// One block of the result, in fp32; `right` is all of b's block if it is no deeper than kDepth.
Tensor block(const Tensor& a, const Tensor& b, const Tensor& right, const Tensor& bias, const Addition& add) {
  const int64_t depth = a.size(1);
  Tensor sum;
  for (int64_t k = 0; k < depth; k += kDepth) {
    const int64_t length = std::min(kDepth, depth - k);
    const Tensor left = widened(a.narrow(1, k, length));
    const Tensor slice = right.defined() ? right : widened(b.narrow(0, k, length));
    if (sum.defined()) {
      sum.addmm_(left, slice, 1, add.alpha);
    } else {
      sum = bias.defined() ? at::addmm(widened(bias), left, slice, add.beta, add.alpha) : at::mm(left, slice);
    }
  }
  return sum;
}

Tensor blocked(const Tensor& a, const Tensor& b, const Addition& add) {
  const int64_t rows = a.size(0), columns = b.size(1), depth = std::min(a.size(1), kDepth);
  const int64_t wide = std::clamp<int64_t>(std::min(kRight / depth, kWidth), 1, columns);
  const int64_t high = std::clamp<int64_t>(std::min(kLeft / depth, kResult / wide), 1, rows);
  Tensor result = at::empty({rows, columns}, a.options());
  const Tensor bias = add.bias.defined() ? add.bias.expand({rows, columns}) : Tensor();
  for (int64_t j = 0; j < columns; j += wide) {
    const int64_t width = std::min(wide, columns - j);
    const Tensor slice = b.narrow(1, j, width);
    const Tensor right = a.size(1) <= kDepth ? widened(slice) : Tensor();
    for (int64_t i = 0; i < rows; i += high) {
      const int64_t height = std::min(high, rows - i);
      const Tensor part = bias.defined() ? bias.narrow(0, i, height).narrow(1, j, width) : bias;
      result.narrow(0, i, height).narrow(1, j, width).copy_(block(a.narrow(0, i, height), slice, right, part, add));
    }
  }
  return result;
}

// As many products at once as the workspace holds; those too large for it one by one.
Tensor batched(const Tensor& a, const Tensor& b) {
  const int64_t count = a.size(0);
  Tensor result = at::empty({count, a.size(1), b.size(2)}, a.options());
  const int64_t each = (a.numel() + b.numel() + result.numel()) / count;
  const int64_t together = kWorkspace / std::max<int64_t>(each, 1);
  for (int64_t i = 0; i < count; i += std::max<int64_t>(together, 1)) {
    if (together == 0) {
      result[i].copy_(blocked(a[i], b[i], {}));
      continue;
    }
    const int64_t length = std::min(together, count - i);
    result.narrow(0, i, length).copy_(at::bmm(widened(a.narrow(0, i, length)), widened(b.narrow(0, i, length))));
  }
  return result;
}

bool product_of(const Tensor& a, const Tensor& b) {
  if (a.layout() != at::kStrided || b.layout() != at::kStrided) return false;
  return a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0) && a.numel() > 0 && b.numel() > 0;
}

// a @ b, and what is added to it, of a call of mm, mv or addmm without out.
struct Product {
  Tensor a, b;
  Addition add;
  bool vector = false;  // b was one

  Tensor result(const Tensor& matrix) const { return vector ? matrix.squeeze(0) : matrix; }
};

std::optional<Product> product_in(const std::string& name, c10::ArrayRef<IValue> arguments) {
  const auto broadcasts = [](const Tensor& bias, const Tensor& a, const Tensor& b) {
    return bias.dim() == 1 ? bias.size(0) == b.size(1)
                           : bias.dim() == 2 && bias.size(0) == a.size(0) && bias.size(1) == b.size(1);
  };
  Product found;
  if (name == "aten::mm" && arguments.size() == 2) {
    found = {arguments[0].toTensor(), arguments[1].toTensor(), {}};
  } else if (name == "aten::addmm" && arguments.size() == 5) {
    const Addition add{arguments[0].toTensor(), arguments[3].toScalar(), arguments[4].toScalar()};
    found = {arguments[1].toTensor(), arguments[2].toTensor(), add};
  } else if (name == "aten::mv" && arguments.size() == 2) {
    const Tensor &matrix = arguments[0].toTensor(), &vector = arguments[1].toTensor();
    if (matrix.dim() != 2 || vector.dim() != 1) return std::nullopt;
    found = {vector.unsqueeze(0), matrix.t(), {}, true};
  } else {
    return std::nullopt;
  }
  if (!product_of(found.a, found.b)) return std::nullopt;
  if (found.add.bias.defined() && !broadcasts(found.add.bias, found.a, found.b)) return std::nullopt;
  return found;
}

std::optional<Tensor> skinny(const Product& of) {
  if (!of.add.plain() || !kernels::takes_skinny_matmul(of.a, of.b)) return std::nullopt;
  const plan::LeaveData leave;
  return of.result(kernels::skinny_matmul(of.a, of.b, of.add.bias));
}

void replace_arguments(size_t arguments, Tensor&& result, Stack* stack) {
  torch::jit::drop(*stack, arguments);
  stack->emplace_back(std::move(result));
}

// Runs mm, mv, addmm or bmm without fp32 copies of whole operands, if a way fits; whether one did.
bool call_product(const std::string& name, size_t arguments, Stack* stack) {
  const c10::ArrayRef<IValue> given(stack->data() + stack->size() - arguments, arguments);
  std::optional<Tensor> result;
  if (const auto of = product_in(name, given)) {
    result = skinny(*of);
    if (!result && !fits(of->a, of->b)) result = of->result(blocked(of->a, of->b, of->add));
  } else if (name == "aten::bmm" && arguments == 2) {
    const Tensor &a = given[0].toTensor(), &b = given[1].toTensor();
    const bool valid = a.dim() == 3 && b.dim() == 3 && a.size(0) == b.size(0) && a.size(2) == b.size(1);
    if (valid && a.numel() > 0 && b.numel() > 0 && !fits(a, b)) result = batched(a, b);
  }
  if (!result.has_value()) return false;
  replace_arguments(arguments, std::move(*result), stack);
  return true;
}

// Tensors of the narrow type become wide ones. Mutable arguments are read widened and written back rounded.
void call_widened(const c10::OperatorHandle& op, at::ScalarType narrow, at::ScalarType wide_type, Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const size_t first = stack->size() - arguments.size(), returns = op.schema().returns().size();
  c10::SmallVector<std::pair<Tensor, Tensor>, 2> targets;  // tensor, its wide stand-in
  for (size_t i = 0; i < arguments.size(); ++i) {
    IValue& value = (*stack)[first + i];
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    const Tensor tensor = value.toTensor();
    if (tensor.scalar_type() != narrow) continue;  // indices
    Tensor wide = arguments[i].is_out() ? at::empty({0}, tensor.options().dtype(wide_type)) : tensor.to(wide_type);
    const bool statistics = op.schema().name() == "aten::native_batch_norm" && (i == 3 || i == 4);  // not declared
    if (writes(arguments[i]) || statistics) targets.emplace_back(tensor, wide);
    value = IValue(std::move(wide));
  }
  plan::call(op, DispatchKeySet(DispatchKey::CPU), stack);
  for (auto& [target, stand_in] : targets) {
    if (target.sizes() == stand_in.sizes()) target.copy_(stand_in);
  }
  const size_t results = stack->size() - returns;
  for (size_t i = 0; i < returns; ++i) {
    map_tensors((*stack)[results + i], [&](Tensor wide) {
      if (!wide.defined()) return wide;
      for (auto& [target, stand_in] : targets) {
        if (!stand_in.is_same(wide)) continue;
        at::native::resize_output(target, wide.sizes());
        return target.copy_(wide);
      }
      return wide.scalar_type() == wide_type ? wide.to(narrow) : wide;
    });
  }
}

class HalfKernel final : public c10::OperatorKernel {
 public:
  explicit HalfKernel(const c10::OperatorHandle& original) : original_(original) {}
  void operator()(const c10::OperatorHandle&, DispatchKeySet, Stack* stack) {
    const size_t count = original_.schema().arguments().size();
    const auto half = shared_half(stack->data() + stack->size() - count, count);
    if (half.has_value()) {
      call_half(original_, *half, stack);
    } else if (!call_skinny(original_.schema().name(), count, stack)) {
      plan::call(original_, DispatchKeySet(DispatchKey::CPU), stack);
    }
  }

 private:
  const c10::OperatorHandle original_;
};

}  // namespace

void call_half(const c10::OperatorHandle& op, at::ScalarType half, Stack* stack) {
  const auto& schema = op.schema();
  if (!call_product(schema.name(), schema.arguments().size(), stack)) call_widened(op, half, at::kFloat, stack);
}

bool call_skinny(const std::string& name, size_t arguments, Stack* stack) {
  const auto of = product_in(name, c10::ArrayRef<IValue>(stack->data() + stack->size() - arguments, arguments));
  if (!of.has_value() || of->b.numel() < kWorthReading) return false;
  std::optional<Tensor> result = skinny(*of);
  if (!result.has_value()) return false;
  replace_arguments(arguments, std::move(*result), stack);
  return true;
}

void call_in_double(const c10::OperatorHandle& op, at::ScalarType integer, Stack* stack) {
  call_widened(op, integer, at::kDouble, stack);
}

std::optional<at::ScalarType> mixed_floats(const std::string& name, const IValue* arguments, size_t count) {
  bool single = false;
  std::optional<at::ScalarType> half;  // two kinds of them do not mix
  for (size_t i = 0; i < count; ++i) {
    if (!arguments[i].isTensor()) continue;
    const at::ScalarType type = arguments[i].toTensor().scalar_type();
    if (type == at::kFloat) {
      single = true;
    } else if (at::isReducedFloatingType(type) && half.value_or(type) == type) {
      half = type;
    } else {
      return std::nullopt;
    }
  }
  if (!single || !half.has_value() || !traits_of(name).mixes_floats) return std::nullopt;
  return at::kFloat;
}

void call_promoted(const c10::OperatorHandle& op, at::ScalarType common, Stack* stack) {
  const size_t count = op.schema().arguments().size();
  IValue* const first = stack->data() + stack->size() - count;
  // The first tensor's: op-plugin gives the result `self.options()`, of addmm and baddbmm those of what is added.
  const at::ScalarType type = first[0].toTensor().scalar_type();
  for (size_t i = 0; i < count; ++i) {
    if (first[i].isTensor()) first[i] = IValue(first[i].toTensor().to(common));
  }
  plan::call(op, DispatchKeySet(DispatchKey::CPU), stack);
  stack->back() = IValue(stack->back().toTensor().to(type));
}

void implement_half(const std::string& name, const std::string& original) {
  const auto handle = [](const std::string& full) {
    const size_t dot = full.find('.');
    return c10::Dispatcher::singleton().findSchemaOrThrow(full.substr(0, dot).c_str(),
                                                          dot == std::string::npos ? "" : full.substr(dot + 1).c_str());
  };
  const size_t colons = name.find("::");
  // It lives as long as the operator: for ever.
  auto* library =
      new torch::Library(torch::Library::IMPL, name.substr(0, colons), DispatchKey::CPU, __FILE__, __LINE__);
  library->impl(name.substr(colons + 2).c_str(),
                torch::CppFunction::makeFromBoxedFunctor(std::make_unique<HalfKernel>(handle(original))));
}

}  // namespace softnpu
