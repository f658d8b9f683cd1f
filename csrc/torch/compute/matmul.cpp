// Integer products by fp32 BLAS: exact, because K is split so that no partial sum reaches 2^24.
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "torch/dispatch/native_kernel.h"

namespace softnpu {

namespace {

using at::Tensor;

// |a| and |b| are at most 128, so 1024 products stay within 2^24, where fp32 still counts in ones.
constexpr int64_t kExactK = 1024;

Tensor int8_mm(const Tensor& a, const Tensor& b) {
  TORCH_CHECK(a.dim() == 2 && b.dim() == 2, "_int_mm: expected two matrices, got ", a.dim(), "-D and ", b.dim(), "-D");
  TORCH_CHECK(a.size(1) == b.size(0), "_int_mm: self.size(1) needs to match mat2.size(0), got ", a.size(1), " and ",
              b.size(0));
  TORCH_CHECK(a.scalar_type() == at::kChar && b.scalar_type() == at::kChar, "_int_mm: expected self and mat2 of dtype ",
              "int8, got ", a.scalar_type(), " and ", b.scalar_type());
  const int64_t depth = a.size(1);
  if (depth <= kExactK) return at::mm(a.to(at::kFloat), b.to(at::kFloat)).to(at::kInt);
  Tensor sum = at::zeros({a.size(0), b.size(1)}, a.options().dtype(at::kInt));
  for (int64_t start = 0; start < depth; start += kExactK) {
    const int64_t length = std::min(kExactK, depth - start);
    sum += at::mm(a.narrow(1, start, length).to(at::kFloat), b.narrow(0, start, length).to(at::kFloat)).to(at::kInt);
  }
  return sum;
}

Tensor int_mm(const Tensor& self, const Tensor& mat2) {
  NativeKernel launch("aten::_int_mm", {&self, &mat2});
  return launch.out(int8_mm(launch.in(self), launch.in(mat2)));
}

Tensor& int_mm_out(const Tensor& self, const Tensor& mat2, Tensor& out) {
  NativeKernel launch("aten::_int_mm", {&self, &mat2, &out});
  TORCH_CHECK(out.scalar_type() == at::kInt, "_int_mm: expected out of dtype int32, got ", out.scalar_type());
  const Tensor product = int8_mm(launch.in(self), launch.in(mat2));
  at::native::resize_output(out, product.sizes());
  launch.in(out).copy_(product);
  return out;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  SOFTNPU_LAUNCHED(m, "_int_mm", int_mm);
  SOFTNPU_LAUNCHED(m, "_int_mm.out", int_mm_out);
}

TORCH_LIBRARY_FRAGMENT(softnpu, m) { m.def("int8_mm(Tensor a, Tensor b) -> Tensor"); }
TORCH_LIBRARY_IMPL(softnpu, CPU, m) { m.impl("int8_mm", &int8_mm); }

}  // namespace

}  // namespace softnpu
