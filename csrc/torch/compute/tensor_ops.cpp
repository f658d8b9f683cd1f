// The basic tensor operators: creation, views, storage, copies, scalars, and those that have no CPU kernel to borrow.
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/InferSize.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_copy_from.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/_to_copy_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/new_zeros_native.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>

#include "device/device.h"
#include "torch/dispatch/enumerations.h"
#include "torch/dispatch/native_kernel.h"
#include "torch/memory/allocator.h"
#include "torch/plan/plan.h"
#include "torch/plan/values.h"
#include "torch/runtime/generator.h"
#include "torch/runtime/sync.h"

namespace softnpu {

namespace {

using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IntArrayRef;
using c10::ScalarType;
using std::optional;

Device target(optional<Device> device) {
  const bool indexed = device.has_value() && device->has_index();
  const int index = indexed ? device->index() : current_device();
  softnpu::device(index);  // names a wrong index
  return {c10::kPrivateUse1, static_cast<DeviceIndex>(index)};
}

void reject_pinned(optional<bool> pin_memory) {
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
}

Tensor filled(Tensor fresh) {  // deterministic mode: uninitialized memory is NaN, or the largest integer
  const at::Context& context = at::globalContext();
  if (context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory()) {
    at::native::fill_empty_deterministic_(fresh);
  }
  return fresh;
}

Tensor empty(IntArrayRef size, optional<ScalarType> dtype, optional<c10::Layout> layout, optional<Device> device,
             optional<bool> pin_memory, optional<c10::MemoryFormat> format) {
  reject_pinned(pin_memory);
  check_dtype("empty", dtype);
  TORCH_CHECK(layout.value_or(c10::kStrided) == c10::kStrided, "empty: only the strided layout is dense on the NPU");
  const c10::DeviceGuard guard(target(device));
  return filled(at::detail::empty_generic(size, npu_allocator(), DispatchKeySet(DispatchKey::PrivateUse1),
                                          c10::dtype_or_default(dtype), format));
}

Tensor empty_strided(IntArrayRef size, IntArrayRef stride, optional<ScalarType> dtype, optional<c10::Layout>,
                     optional<Device> device, optional<bool> pin_memory) {
  reject_pinned(pin_memory);
  check_dtype("empty_strided", dtype);
  const c10::DeviceGuard guard(target(device));
  return filled(at::detail::empty_strided_generic(
      size, stride, npu_allocator(), DispatchKeySet(DispatchKey::PrivateUse1), c10::dtype_or_default(dtype)));
}

Tensor zero_tensor(c10::SymIntArrayRef size, optional<ScalarType> dtype, optional<c10::Layout> layout,
                   optional<Device> device, optional<bool> pin_memory) {
  check_dtype("_efficientzerotensor", dtype);
  return at::zeros_symint(size, dtype, layout, device, pin_memory);
}

// --- storage ----------------------------------------------------------------------------------------------

Tensor& set_storage(Tensor& self, c10::Storage source, int64_t offset, IntArrayRef size, IntArrayRef stride) {
  TORCH_CHECK(source.device() == self.device(), "Attempted to set the storage of a tensor on device \"", self.device(),
              "\" to a storage on different device \"", source.device(), "\". This is no longer allowed.");
  TORCH_CHECK(offset >= 0, "Tensor: invalid storage offset ", offset);
  const bool plain = stride.empty() && !size.empty();
  TORCH_CHECK(plain || stride.size() == size.size(), "unequal size length (", size.size(), ") and stride length (",
              stride.size(), ")");
  // The storage grows before the tensor changes: if there is no memory, the tensor stays as it was.
  at::detail::check_size_nonnegative(size);
  const size_t itemsize = self.dtype().itemsize(), start = static_cast<size_t>(offset);
  const size_t needed = plain ? at::detail::computeStorageNbytesContiguous(size, itemsize, start)
                              : at::detail::computeStorageNbytes(size, stride, itemsize, start);
  const bool empty = std::find(size.begin(), size.end(), 0) != size.end();
  if (!empty && needed > source.nbytes()) at::native::resize_bytes_nocuda(source, needed);
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  if (plain) {
    impl->set_sizes_contiguous(size);
    impl->set_storage_offset(offset);
  } else {
    impl->set_sizes_and_strides(size, stride, offset);
  }
  return self;
}

Tensor& set_whole_storage(Tensor& self, c10::Storage source) {
  const auto count = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return set_storage(self, std::move(source), 0, {count}, {});
}

Tensor& set_tensor(Tensor& self, const Tensor& source) {
  if (self.is_same(source)) return self;
  TORCH_CHECK(self.dtype() == source.dtype(), "Could not set tensor of type ", source.dtype(), " to a tensor of type ",
              self.dtype());
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

Tensor& set_empty(Tensor& self) { return set_storage(self, at::empty({0}, self.options()).storage(), 0, {0}, {1}); }

// --- copies and scalars -------------------------------------------------------------------------------------

Tensor& copy_(Tensor& self, const Tensor& source, bool non_blocking) {
  TORCH_CHECK(source.defined(), "copy_: source is undefined");
  if (self.is_same(source)) return self;
  ensure_started();
  const bool crosses = on_npu(self) != on_npu(source);
  if (crosses && !non_blocking) note_synchronization("copy_");
  TORCH_CHECK(self.device().type() != c10::kMeta && source.device().type() != c10::kMeta,
              "Cannot copy out of meta tensor; no data!");
  const int index = on_npu(self) ? self.device().index() : source.device().index();
  if (crosses && !non_blocking) wait_for_stream(index, current_stream(index), "copy_ between host and device");
  const KernelFrame frame(index);
  (on_npu(self) ? cpu_alias(self) : self).copy_(on_npu(source) ? cpu_alias(source) : source);
  return self;
}

Tensor copy_from(const Tensor& source, const Tensor& target, bool non_blocking) {
  Tensor to = target;
  return copy_(to, source, non_blocking);
}

Tensor copy_from_and_resize(const Tensor& source, const Tensor& target) {
  target.resize_(source.sizes());
  return at::_copy_from(source, target, false);
}

c10::Scalar local_scalar_dense(const Tensor& self) {
  note_synchronization("item");
  const int index = self.device().index();
  wait_for_stream(index, current_stream(index), "item");
  if (plan::on()) return plan::read_scalar(cpu_alias(self));
  return at::_local_scalar_dense(cpu_alias(self));
}

// A cast of an NPU tensor to float64 gives float32, as upstream's ToKernelNpu.cpp has it. A tensor that is made in
// float64 or comes from another device in float64 keeps it.
Tensor to_copy(const Tensor& self, optional<at::ScalarType> dtype, optional<at::Layout> layout,
               optional<at::Device> device, optional<bool> pin_memory, bool non_blocking,
               optional<at::MemoryFormat> format) {
  check_dtype("_to_copy", dtype);
  if (dtype == at::kDouble && self.scalar_type() != at::kDouble && !layout && !device) {
    TORCH_WARN_ONCE("Device do not support double dtype now, dtype cast replace with float.");
    dtype = at::kFloat;
  }
  return at::native::_to_copy(self, dtype, layout, device, pin_memory, non_blocking, format);
}

void record_stream(Tensor& self, c10::Stream stream) {
  npu_allocator()->recordStream(self.storage().data_ptr(), stream);
}

// --- operators without a CPU kernel to borrow --------------------------------------------------------------------

std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, optional<bool> train) {
  NativeKernel kernel("aten::native_dropout", {&input});
  const Tensor x = kernel.in(input);
  if (x.numel() == 0)
    return {kernel.out(at::empty_like(x)), kernel.out(at::empty_like(x, x.options().dtype(at::kBool)))};
  Tensor mask, result;
  if (!train.value_or(true)) {
    mask = at::ones_like(x, x.options().dtype(at::kBool));
    result = x.clone();
  } else {
    const double keep = 1 - p;
    const auto index = static_cast<DeviceIndex>(kernel.device());
    mask = at::empty_like(x, x.options().dtype(at::kBool)).bernoulli_(keep, derive_cpu_generator(std::nullopt, index));
    result = x.mul(mask).mul_(keep == 0 ? 0.0 : 1.0 / keep);
  }
  return {kernel.out(std::move(result)), kernel.out(std::move(mask))};
}

Tensor convolution_overrideable(const Tensor& input, const Tensor& weight, const optional<Tensor>& bias,
                                c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                                bool transposed, c10::SymIntArrayRef output_padding, c10::SymInt groups) {
  return at::convolution_symint(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups);
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward_overrideable(const Tensor& grad, const Tensor& input,
                                                                     const Tensor& weight, c10::SymIntArrayRef stride,
                                                                     c10::SymIntArrayRef padding,
                                                                     c10::SymIntArrayRef dilation, bool transposed,
                                                                     c10::SymIntArrayRef output_padding,
                                                                     c10::SymInt groups, std::array<bool, 3> mask) {
  const c10::SymInt channels = transposed ? weight.sym_size(1) * groups : weight.sym_size(0);
  return at::convolution_backward_symint(grad, input, weight, c10::SymIntArrayRef(&channels, 1), stride, padding,
                                         dilation, transposed, output_padding, groups, mask);
}

// PyTorch's kernels for quantized tensors make the negative of one by copying it to another one like it, which has the
// bit too: the stack would end before they do.
Tensor refuse_negative_view(const Tensor&) {
  TORCH_CHECK(false, "aten::_neg_view: argument 'self' must not be quantized: its elements have no negative bit");
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_efficientzerotensor", &zero_tensor);
  m.impl("zeros_like", &at::native::zeros_like);
  m.impl("new_zeros", &at::native::new_zeros);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("set_.source_Storage", &set_whole_storage);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("set_", &set_empty);
  SOFTNPU_LAUNCHED(m, "copy_", copy_);
  SOFTNPU_LAUNCHED(m, "_copy_from", copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  SOFTNPU_LAUNCHED(m, "_local_scalar_dense", local_scalar_dense);
  m.impl("_to_copy", &to_copy);
  m.impl("record_stream", &record_stream);
  SOFTNPU_LAUNCHED(m, "native_dropout", native_dropout);
  m.impl("convolution_overrideable", &convolution_overrideable);
  m.impl("convolution_backward_overrideable", &convolution_backward_overrideable);
}

TORCH_LIBRARY_IMPL(aten, QuantizedPrivateUse1, m) { m.impl("_neg_view", &refuse_negative_view); }

}  // namespace

}  // namespace softnpu
