// Factories that the card has kernels of its own for: they ignore pin_memory, where PyTorch's would refuse it.
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange_native.h>
#include <ATen/ops/eye_native.h>
#include <ATen/ops/linspace_native.h>
#include <ATen/ops/normal_native.h>
#include <ATen/ops/ones_like_native.h>
#include <ATen/ops/ones_native.h>
#include <ATen/ops/randperm_native.h>
#include <ATen/ops/range_native.h>
#include <ATen/ops/zeros_native.h>
#include <torch/library.h>

namespace softnpu {

namespace {

using at::Scalar;
using at::Tensor;
using std::nullopt;
using std::optional;

// A factory of PyTorch, called without its last argument.
template <class... Args>
struct Of {
  template <Tensor (*factory)(Args..., optional<at::ScalarType>, optional<at::Layout>, optional<at::Device>,
                              optional<bool>)>
  static Tensor unpinned(Args... args, optional<at::ScalarType> dtype, optional<at::Layout> layout,
                         optional<at::Device> device, optional<bool>) {
    return factory(args..., dtype, layout, device, nullopt);
  }
};

using Number = const Scalar&;

Tensor ones_like(const Tensor& self, optional<at::ScalarType> dtype, optional<at::Layout> layout,
                 optional<at::Device> device, optional<bool>, optional<at::MemoryFormat> format) {
  return at::native::ones_like(self, dtype, layout, device, nullopt, format);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("zeros", &Of<c10::SymIntArrayRef>::unpinned<&at::native::zeros_symint>);
  m.impl("ones", &Of<at::IntArrayRef>::unpinned<&at::native::ones>);
  m.impl("ones_like", &ones_like);
  m.impl("arange", &Of<Number>::unpinned<&at::native::arange>);
  m.impl("arange.start", &Of<Number, Number>::unpinned<&at::native::arange>);
  m.impl("arange.start_step", &Of<Number, Number, Number>::unpinned<&at::native::arange>);
  m.impl("range", &Of<Number, Number>::unpinned<&at::native::range>);
  m.impl("range.step", &Of<Number, Number, Number>::unpinned<&at::native::range>);
  m.impl("linspace", &Of<Number, Number, int64_t>::unpinned<&at::native::linspace>);
  m.impl("eye", &Of<int64_t>::unpinned<&at::native::eye>);
  m.impl("eye.m", &Of<int64_t, int64_t>::unpinned<&at::native::eye>);
  m.impl("randperm", &Of<int64_t>::unpinned<&at::native::randperm>);
  m.impl("randperm.generator", &Of<int64_t, optional<at::Generator>>::unpinned<&at::native::randperm>);
  m.impl("normal.float_float",
         &Of<double, double, at::IntArrayRef, optional<at::Generator>>::unpinned<&at::native::normal>);
}

}  // namespace softnpu
