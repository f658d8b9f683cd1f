// The fast path: hot operators that call PyTorch's CPU kernel without boxing.
//
// The fallback (fallback.cpp) puts arguments on a stack, makes CPU aliases of their storages and asks the dispatcher
// for the same kernel. The fast path calls it by name. It takes dense tensors of one device while nobody asked for a
// stage of the launch (launch.h); all other calls go to the fallback.
#include <ATen/CPUFunctions.h>
#include <ATen/CompositeExplicitAutogradFunctions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "device/device.h"
#include "torch/compute/zero.h"
#include "torch/dispatch/cpu_alias.h"
#include "torch/dispatch/enumerations.h"
#include "torch/dispatch/fallback.h"
#include "torch/dispatch/kernel_frame.h"
#include "torch/dispatch/launch.h"

namespace softnpu {

namespace {

using at::Tensor;
using c10::Scalar;
using torch::jit::Stack;
using MaybeScalar = std::optional<Scalar>;
using MaybeType = std::optional<at::ScalarType>;

// --- may a call take it? --------------------------------------------------------------------------------------------

class Arguments {  // whether all are dense tensors of one device, or numbers
 public:
  void see(const Tensor& tensor) {
    if (tensor.unsafeGetTensorImpl()->key_set().has(c10::DispatchKey::PrivateUse1)) {
      const int index = tensor.device().index();
      plain_ &= device_ < 0 || device_ == index;
      device_ = index;
    } else {  // a number beside tensors is a CPU tensor
      plain_ &= tensor.defined() && tensor.is_cpu() && tensor.dim() == 0;
    }
  }
  void see(const at::ITensorListRef& tensors) {
    for (const Tensor& tensor : tensors) see(tensor);
  }
  void see(at::TensorList tensors) { see(at::ITensorListRef(tensors)); }
  void see(const MaybeType& dtype) { plain_ &= is_dtype(dtype); }  // the general way refuses it
  template <class Other>
  void see(const Other&) {}

  bool plain() const { return plain_ && device_ >= 0; }
  int device() const { return device_; }

 private:
  int device_ = -1;
  bool plain_ = true;
};

// --- aliases -------------------------------------------------------------------------------------------------------

// What a kernel does with its arguments: an elementwise one reads and writes elements, others may make views of them
// or, if they multiply, have a way of their own for half precision.
enum class OperatorKind { elementwise, other, multiplies };

template <OperatorKind kind>
struct In {
  static Tensor alias(const Tensor& tensor) {
    if (!on_npu(tensor)) return tensor;
    return kind == OperatorKind::elementwise ? element_alias(tensor) : cpu_alias(tensor);
  }
  static std::vector<Tensor> alias(const at::ITensorListRef& tensors) {
    std::vector<Tensor> found;
    found.reserve(tensors.size());
    for (const Tensor& tensor : tensors) found.push_back(alias(tensor));
    return found;
  }
  static std::vector<Tensor> alias(at::TensorList tensors) { return alias(at::ITensorListRef(tensors)); }
  template <class Other>
  static const Other& alias(const Other& value) {
    return value;
  }
};

Tensor out(Tensor result, c10::Device npu) { return adopted(std::move(result), npu); }
template <class... Tensors>
std::tuple<Tensors...> out(std::tuple<Tensors...> results, c10::Device npu) {
  std::apply([&](Tensors&... each) { ((each = adopted(std::move(each), npu)), ...); }, results);
  return results;
}

// --- one operator -------------------------------------------------------------------------------------------------

// `cpu` is PyTorch's kernel.
template <OperatorKind kind, class Signature, Signature* cpu>
struct FastPath;

template <OperatorKind kind, class Result, class... Args, Result (*cpu)(Args...)>
struct FastPath<kind, Result(Args...), cpu> {
  static inline const Operation* operation = nullptr;

  static Result call(Args... args) {
    Arguments seen;
    (seen.see(args), ...);
    bool open = seen.plain() && !operation->asked();
    if constexpr (kind == OperatorKind::multiplies) open &= !(half(args) || ...);
    if constexpr (std::is_reference_v<Result>) open &= on_npu(first(args...));
    if (!open) return general(args...);
    ensure_started();
    const KernelFrame frame(seen.device());
    if constexpr (std::is_reference_v<Result>) {  // in place: the first argument, which keeps its geometry
      auto&& self = first(args...);
      in_place(std::forward_as_tuple(args...));
      return self;
    } else {
      const c10::Device npu(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(seen.device()));
      return out(cpu(In<kind>::alias(args)...), npu);
    }
  }

 private:
  static bool half(const Tensor& tensor) { return at::isReducedFloatingType(tensor.scalar_type()); }
  static bool half(const Scalar&) { return false; }

  template <class First, class... Rest>
  static First& first(First& self, Rest&...) {
    return self;
  }

  template <class Self, class... Rest>
  static void in_place(std::tuple<Self, Rest...> args) {
    std::apply(
        [](auto& self, auto&... rest) {
          Tensor alias = In<kind>::alias(self);
          cpu(alias, In<kind>::alias(rest)...);
        },
        args);
  }

  static Result general(Args... args) {
    Stack stack;
    stack.reserve(sizeof...(Args));
    (torch::jit::push_one(stack, args), ...);
    run_on_cpu(operation->handle, &stack);
    if constexpr (std::is_reference_v<Result>) {
      return first(args...);
    } else {
      return c10::impl::PopResult<Result>::call(stack);
    }
  }
};

template <OperatorKind kind, class Signature, Signature* cpu>
void fast(torch::Library& m, const char* name) {
  using One = FastPath<kind, Signature, cpu>;
  One::operation = &operation_of(find_aten(name));
  m.impl(name, TORCH_FN(One::call));
}

// --- the operators ------------------------------------------------------------------------------------------------

using Unary = Tensor(const Tensor&);
using Binary = Tensor(const Tensor&, const Tensor&);
using WithScalar = Tensor(const Tensor&, const Scalar&);
using Scaled = Tensor(const Tensor&, const Tensor&, const Scalar&);
using Ternary = Tensor(const Tensor&, const Tensor&, const Tensor&);
using ScaledProduct = Tensor(const Tensor&, const Tensor&, const Tensor&, const Scalar&);
using Reduction = Tensor(const Tensor&, at::OptionalIntArrayRef, bool, MaybeType);

using UnaryInPlace = Tensor&(Tensor&);
using BinaryInPlace = Tensor&(Tensor&, const Tensor&);
using ScalarInPlace = Tensor&(Tensor&, const Scalar&);
using ScaledInPlace = Tensor&(Tensor&, const Tensor&, const Scalar&);
using ScaledProductInPlace = Tensor&(Tensor&, const Tensor&, const Tensor&, const Scalar&);

#define ELEMENTWISE(type, name, function) fast<OperatorKind::elementwise, type, at::cpu::function>(m, name)
#define OTHER(type, name, function) fast<OperatorKind::other, type, at::cpu::function>(m, name)
#define PRODUCT(type, name, function) fast<OperatorKind::multiplies, type, at::cpu::function>(m, name)

void elementwise(torch::Library& m) {
  ELEMENTWISE(Unary, "exp", exp);
  ELEMENTWISE(Unary, "expm1", expm1);
  ELEMENTWISE(Unary, "log", log);
  ELEMENTWISE(Unary, "log1p", log1p);
  ELEMENTWISE(Unary, "log2", log2);
  ELEMENTWISE(Unary, "sqrt", sqrt);
  ELEMENTWISE(Unary, "rsqrt", rsqrt);
  ELEMENTWISE(Unary, "tanh", tanh);
  ELEMENTWISE(Unary, "sigmoid", sigmoid);
  ELEMENTWISE(Unary, "relu", relu);
  ELEMENTWISE(Unary, "silu", silu);
  ELEMENTWISE(Unary, "sin", sin);
  ELEMENTWISE(Unary, "cos", cos);
  ELEMENTWISE(Unary, "neg", neg);
  ELEMENTWISE(Unary, "reciprocal", reciprocal);
  ELEMENTWISE(Unary, "floor", floor);
  ELEMENTWISE(Unary, "ceil", ceil);
  ELEMENTWISE(Unary, "round", round);
  ELEMENTWISE(Unary, "erf", erf);
  ELEMENTWISE(Unary, "isnan", isnan);
  ELEMENTWISE(Unary, "bitwise_not", bitwise_not);
  fast<OperatorKind::elementwise, Unary, at::compositeexplicitautograd::abs>(m, "abs");
  ELEMENTWISE(Tensor(const Tensor&, c10::string_view), "gelu", gelu);
  ELEMENTWISE(Scaled, "add.Tensor", add);
  ELEMENTWISE(Scaled, "sub.Tensor", sub);
  ELEMENTWISE(Binary, "mul.Tensor", mul);
  ELEMENTWISE(Binary, "div.Tensor", div);
  ELEMENTWISE(Binary, "maximum", maximum);
  ELEMENTWISE(Binary, "minimum", minimum);
  ELEMENTWISE(Binary, "atan2", atan2);
  ELEMENTWISE(Binary, "pow.Tensor_Tensor", pow);
  ELEMENTWISE(WithScalar, "pow.Tensor_Scalar", pow);
  ELEMENTWISE(Binary, "bitwise_and.Tensor", bitwise_and);
  ELEMENTWISE(Binary, "bitwise_or.Tensor", bitwise_or);
  ELEMENTWISE(Binary, "eq.Tensor", eq);
  ELEMENTWISE(Binary, "ne.Tensor", ne);
  ELEMENTWISE(Binary, "lt.Tensor", lt);
  ELEMENTWISE(Binary, "le.Tensor", le);
  ELEMENTWISE(Binary, "gt.Tensor", gt);
  ELEMENTWISE(Binary, "ge.Tensor", ge);
  ELEMENTWISE(WithScalar, "eq.Scalar", eq);
  ELEMENTWISE(WithScalar, "ne.Scalar", ne);
  ELEMENTWISE(WithScalar, "lt.Scalar", lt);
  ELEMENTWISE(WithScalar, "le.Scalar", le);
  ELEMENTWISE(WithScalar, "gt.Scalar", gt);
  ELEMENTWISE(WithScalar, "ge.Scalar", ge);
  ELEMENTWISE(Tensor(const Tensor&, const MaybeScalar&, const MaybeScalar&), "clamp", clamp);
  ELEMENTWISE(Ternary, "where.self", where);
  ELEMENTWISE(ScaledProduct, "addcmul", addcmul);
  ELEMENTWISE(ScaledProduct, "addcdiv", addcdiv);
  ELEMENTWISE(Ternary, "lerp.Tensor", lerp);
  ELEMENTWISE(Scaled, "lerp.Scalar", lerp);
}

void in_place(torch::Library& m) {
  fast<OperatorKind::elementwise, UnaryInPlace, softnpu::zero_>(m, "zero_");
  fast<OperatorKind::elementwise, ScalarInPlace, softnpu::fill_>(m, "fill_.Scalar");
  ELEMENTWISE(UnaryInPlace, "sqrt_", sqrt_);
  ELEMENTWISE(UnaryInPlace, "relu_", relu_);
  ELEMENTWISE(ScaledInPlace, "add_.Tensor", add_);
  ELEMENTWISE(ScaledInPlace, "sub_.Tensor", sub_);
  ELEMENTWISE(BinaryInPlace, "mul_.Tensor", mul_);
  ELEMENTWISE(BinaryInPlace, "div_.Tensor", div_);
  ELEMENTWISE(ScaledProductInPlace, "addcmul_", addcmul_);
  ELEMENTWISE(ScaledProductInPlace, "addcdiv_", addcdiv_);
  ELEMENTWISE(ScaledInPlace, "lerp_.Scalar", lerp_);
}

void reductions_and_products(torch::Library& m) {
  fast<OperatorKind::other, Tensor(const Tensor&, MaybeType), at::compositeexplicitautograd::sum>(m, "sum");
  OTHER(Reduction, "sum.dim_IntList", sum);
  OTHER(Reduction, "mean.dim", mean);
  OTHER(Tensor(const Tensor&, at::IntArrayRef, bool), "amax", amax);
  OTHER(Tensor(const Tensor&, at::IntArrayRef, bool), "amin", amin);
  OTHER(Unary, "max", max);
  OTHER(Unary, "min", min);
  OTHER(Tensor(const Tensor&, std::optional<int64_t>, bool), "argmax", argmax);
  OTHER(Tensor(const Tensor&, int64_t, MaybeType), "cumsum", cumsum);
  OTHER(Tensor(const Tensor&, int64_t, bool), "_softmax", _softmax);
  PRODUCT(Tensor(const Tensor&, int64_t, bool), "_log_softmax", _log_softmax);  // half precision runs in fp32
  OTHER(Tensor(const Tensor&, const Scalar&, at::OptionalIntArrayRef, bool, MaybeType), "linalg_vector_norm",
        linalg_vector_norm);
  using Pair = std::tuple<Tensor, Tensor>;
  OTHER(Pair(const Tensor&, c10::SymInt, int64_t, bool, bool), "topk", topk_symint);
  OTHER(Tensor(const at::ITensorListRef&, int64_t), "cat", cat);
  fast<OperatorKind::other, Tensor(at::TensorList, int64_t), at::compositeexplicitautograd::stack>(m, "stack");
  using AddedProduct = Tensor(const Tensor&, const Tensor&, const Tensor&, const Scalar&, const Scalar&);
  PRODUCT(Binary, "mm", mm);
  PRODUCT(Binary, "bmm", bmm);
  PRODUCT(AddedProduct, "addmm", addmm);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  elementwise(m);
  in_place(m);
  reductions_and_products(m);
}

}  // namespace

}  // namespace softnpu
