#include "torch/dispatch/cpu_alias.h"

#include <ATen/NestedTensorImpl.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/TensorUtils.h>
#include <ATen/core/TensorBody.h>
#include <ATen/ops/_sparse_compressed_tensor_unsafe.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/quantized/QTensorImpl.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <cstring>

#include "device/device.h"
#include "device/sanitizer.h"

namespace softnpu {

namespace {

using c10::BackendComponent;
using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::TensorImpl;

// TensorImpl keeps device and keys protected; a derived class may name them.
struct Tag : TensorImpl {
  static std::optional<c10::Device>& device(TensorImpl& impl) { return impl.*(&Tag::device_opt_); }
  static DispatchKeySet& keys(TensorImpl& impl) { return impl.*(&Tag::key_set_); }
};

const DispatchKeySet kCpuOnly = DispatchKeySet(BackendComponent::CPUBit) | DispatchKeySet(DispatchKey::AutocastCPU);
const DispatchKeySet kNpuOnly =
    DispatchKeySet(BackendComponent::PrivateUse1Bit) | DispatchKeySet(DispatchKey::AutocastPrivateUse1);

DispatchKeySet swap_keys(DispatchKeySet keys, DispatchKeySet from, DispatchKeySet to) {
  return DispatchKeySet(DispatchKeySet::RAW, (keys.raw_repr() & ~from.raw_repr()) | to.raw_repr());
}

void retag_as_npu(TensorImpl& impl, c10::Device npu) {
  DispatchKeySet& keys = Tag::keys(impl);
  keys = swap_keys(keys, kCpuOnly, kNpuOnly);
  Tag::device(impl) = npu;
}

void retag_storage(c10::StorageImpl& storage, c10::Device npu) {
  storage._mutable_data_ptr_no_checks().unsafe_set_device(npu);
  storage.set_allocator(npu_allocator());
}

void copy_geometry(const TensorImpl& from, TensorImpl& to) {
  to.set_sizes_and_strides(from.sizes(), from.strides(), from.storage_offset());
}

// Lists that may be None are no part of what PyTorch chooses a kernel by, so that such tensors come along.
[[noreturn]] __attribute__((noinline, cold)) void nowhere(std::string_view op) {
  TORCH_CHECK(
      false, op, op.empty() ? "" : ": ",
      "a tensor among the arguments has no memory: it is a fake or nested tensor, or one of another class of Python");
}

[[noreturn]] __attribute__((noinline, cold)) void outside(const TensorImpl& impl, size_t bytes, std::string_view op) {
  TORCH_CHECK(false, op, op.empty() ? "" : ": ", "a tensor of sizes ", impl.sizes(), ", strides ", impl.strides(),
              ", storage offset ", impl.storage_offset(), " and dtype ", impl.dtype().name(),
              " lies outside of its storage, which has ", bytes, " bytes",
              bytes == 0 ? ": its memory was released (resize_ of a storage)" : "");
}

bool strided(const at::Tensor& tensor) { return tensor.layout() == at::kStrided; }

void release_storage(void* storage) { c10::raw::intrusive_ptr::decref(static_cast<c10::StorageImpl*>(storage)); }

}  // namespace

void check_inside(const at::Tensor& tensor, std::string_view op) {
  const TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (C10_UNLIKELY(!impl.unsafe_storage())) nowhere(op);
  c10::StorageImpl& storage = *impl.unsafe_storage().unsafeGetStorageImpl();
  const size_t bytes = storage.nbytes();
  const int64_t count = impl.numel();
  if (count == 0) return;
  if (C10_UNLIKELY(bytes != 0 && storage._mutable_data_ptr_no_checks().get() == nullptr)) nowhere(op);
  int64_t last = impl.storage_offset(), step = 0;  // elements
  bool overflow = false;
  if (C10_LIKELY(impl.is_contiguous())) {
    overflow = __builtin_add_overflow(last, count - 1, &last);
  } else {
    const c10::IntArrayRef sizes = impl.sizes(), strides = impl.strides();
    for (size_t i = 0; i < sizes.size(); ++i) {
      overflow |= __builtin_mul_overflow(sizes[i] - 1, strides[i], &step) || __builtin_add_overflow(last, step, &last);
    }
  }
  size_t end = 0;
  overflow |= last < 0 || __builtin_mul_overflow(static_cast<size_t>(last) + 1, impl.dtype().itemsize(), &end);
  if (C10_UNLIKELY(overflow || end > bytes)) outside(impl, bytes, op);
}

c10::StorageImpl* kept_by(const c10::StorageImpl& alias) {
  const c10::DataPtr& data = alias.data_ptr();
  return data.get_deleter() == &release_storage ? static_cast<c10::StorageImpl*>(data.get_context()) : nullptr;
}

c10::Storage alias_storage(c10::StorageImpl* of, c10::Device as, bool keep_alive) {
  void* at = const_cast<void*>(of->data());
  c10::DataPtr bytes(at, as);
  if (keep_alive) {
    c10::raw::intrusive_ptr::incref(of);
    bytes = c10::DataPtr(at, of, &release_storage, as);
  }
  c10::Allocator* allocator = as.is_cpu() ? c10::GetAllocator(c10::kCPU) : npu_allocator();
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), of->nbytes(), std::move(bytes),
                                               allocator, of->resizable());
}

at::Tensor npu_view(const at::Tensor& tensor, c10::Device npu, bool keep_alive) {
  c10::Storage storage = alias_storage(tensor.storage().unsafeGetStorageImpl(), npu, keep_alive);
  storage.unsafeGetStorageImpl()->set_resizable(false);
  at::Tensor view = at::empty({0}, tensor.options().device(npu));
  view.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
  copy_geometry(*tensor.unsafeGetTensorImpl(), *view.unsafeGetTensorImpl());
  return view;
}

namespace {

// A CPU storage on the bytes of an NPU storage, which it keeps alive.
c10::Storage make_alias_storage(c10::StorageImpl* npu) { return alias_storage(npu, c10::kCPU, true); }

at::Tensor alias_on(const at::Tensor& npu, c10::Storage on_cpu) {
  TensorImpl& from = *npu.unsafeGetTensorImpl();
  // Autograd keys stay (dispatch excludes them while the kernel runs): a view of the alias may become a result.
  const DispatchKeySet keys = swap_keys(from.key_set(), kNpuOnly, DispatchKeySet(BackendComponent::CPUBit));
  // Constructed without them, it allocates no version counter: nothing below autograd counts versions.
  const DispatchKeySet bare = keys - c10::autograd_dispatch_keyset_with_ADInplaceOrView;
  c10::intrusive_ptr<TensorImpl> to;
  if (C10_UNLIKELY(from.is_quantized())) {
    auto* quantized = dynamic_cast<at::QTensorImpl*>(&from);
    TORCH_CHECK(quantized != nullptr, "Expected a quantized tensor with a scale, but it has only the dtype of one");
    to = c10::make_intrusive<at::QTensorImpl>(TensorImpl::VIEW, std::move(on_cpu), bare, from.dtype(),
                                              quantized->quantizer());
  } else {
    to = c10::make_intrusive<TensorImpl>(TensorImpl::VIEW, std::move(on_cpu), bare, from.dtype());
  }
  Tag::keys(*to) = keys;
  copy_geometry(from, *to);
  if (from.is_wrapped_number()) to->set_wrapped_number(true);
  return at::Tensor(std::move(to));
}

}  // namespace

at::Tensor cpu_alias(const at::Tensor& npu) {
  check_inside(npu, {});
  return alias_on(npu, make_alias_storage(npu.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()));
}

at::Tensor element_alias(const at::Tensor& npu) {
  check_inside(npu, {});
  TensorImpl& from = *npu.unsafeGetTensorImpl();
  const DispatchKeySet keys = swap_keys(from.key_set(), kNpuOnly, DispatchKeySet(BackendComponent::CPUBit)) -
                              c10::autograd_dispatch_keyset_with_ADInplaceOrView;
  auto to = c10::make_intrusive<TensorImpl>(TensorImpl::VIEW, c10::Storage(from.unsafe_storage()), keys, from.dtype());
  Tag::device(*to) = c10::Device(c10::kCPU);
  copy_geometry(from, *to);
  if (from.is_wrapped_number()) to->set_wrapped_number(true);
  return at::Tensor::wrap_tensor_impl(std::move(to));
}

at::Tensor adopted(at::Tensor made, c10::Device npu) {
  TensorImpl& impl = *made.unsafeGetTensorImpl();
  c10::StorageImpl& storage = *impl.unsafe_storage().unsafeGetStorageImpl();
  TORCH_INTERNAL_ASSERT(made.use_count() == 1 && (block_of(storage.data_ptr()) != nullptr || storage.nbytes() == 0));
  retag_storage(storage, npu);
  retag_as_npu(impl, npu);
  return made;
}

bool is_alias(const at::Tensor& cpu) {
  return cpu.has_storage() && cpu.storage().data_ptr().get_deleter() == &release_storage;
}

at::Tensor CpuAliases::alias(const at::Tensor& npu) {
  if (touches_) check_inside(npu, op_);
  c10::StorageImpl* storage = npu.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  for (const auto& [original, on_cpu] : storages_) {
    if (original == storage) return alias_on(npu, on_cpu);
  }
  storages_.emplace_back(storage, make_alias_storage(storage));
  return alias_on(npu, storages_.back().second);
}

c10::StorageImpl* CpuAliases::npu_storage_of(const c10::StorageImpl* storage) const {
  for (const auto& [original, on_cpu] : storages_) {
    if (on_cpu.unsafeGetStorageImpl() == storage) return original;
  }
  return nullptr;
}

// `owned`: nobody keeps the tensor, even if references to it are still alive.
at::Tensor CpuAliases::adopt(at::Tensor cpu, bool owned) {
  TensorImpl& impl = *cpu.unsafeGetTensorImpl();
  c10::StorageImpl& storage = *impl.unsafe_storage().unsafeGetStorageImpl();
  const bool shared = cpu.use_count() > 1;
  c10::StorageImpl* original = npu_storage_of(&storage);
  if (original == nullptr && storage.device_type() != c10::kPrivateUse1) {
    const bool ours = block_of(storage.data_ptr()) != nullptr || storage.nbytes() == 0;
    if (!ours || (shared && !owned)) {
      at::Tensor copy = at::empty_strided(cpu.sizes(), cpu.strides(), cpu.options().device(npu()));
      cpu_alias(copy).copy_(cpu);
      return copy;
    }
    retag_storage(storage, npu());
  }
  if (shared) cpu = at::Tensor::wrap_tensor_impl(impl.shallow_copy_and_detach(impl.version_counter(), true));
  TensorImpl& target = *cpu.unsafeGetTensorImpl();
  if (original != nullptr) {
    target.set_storage_keep_dtype(c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(original)));
  }
  retag_as_npu(target, npu());
  return cpu;
}

void CpuAliases::mixed(c10::Device other) const {
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ", npu(), " and ",
              other, "! (in ", op_, ")");
}

void CpuAliases::see(const at::Tensor& tensor, bool is_mutable, bool host_ok) {
  if (!tensor.defined()) return;
  const c10::Device device = tensor.device();
  if (device.type() == c10::kPrivateUse1) {
    if (from_tensor_ && device_ != device.index()) mixed(device);
    device_ = device.index();
    from_tensor_ = true;
  } else if (device.type() != c10::kCPU || (!host_ok && (tensor.dim() > 0 || is_mutable))) {
    host_tensor_ |= device.type() == c10::kCPU;
    if (device.type() != c10::kCPU && device.type() != c10::kMeta) mixed(device);
  }
}

void CpuAliases::see(c10::Device device) {
  if (device.type() != c10::kPrivateUse1) return;
  from_argument_ = true;
  if (!from_tensor_) {
    device_ = device.has_index() ? device.index() : current_device();
  }
}

void CpuAliases::resolve_device() {
  if (device_ < 0) device_ = current_device();
  if (host_tensor_ && from_tensor_) {
    TORCH_CHECK_INDEX(op_ != "aten::index" && op_ != "aten::_index_put_impl_" && op_ != "aten::_unsafe_index",
                      "indices should be either on cpu or on the same device as the indexed tensor (cpu)");
    mixed(c10::Device(c10::kCPU));
  }
  ensure_started();
}

at::Tensor CpuAliases::in(const at::Tensor& tensor, bool is_mutable, bool bump) {
  if (!on_npu(tensor)) return tensor;
  at::Tensor alias = tensor.is_nested() ? in_nested(tensor) : strided(tensor) ? this->alias(tensor) : in_sparse(tensor);
  pairs_.push_back({tensor, alias, is_mutable, bump});
  return alias;
}

at::Tensor CpuAliases::out(at::Tensor result, bool owned) {
  if (!result.defined() || result.device().type() != c10::kCPU) return result;
  for (const Pair& pair : pairs_) {
    if (pair.alias.is_same(result)) return pair.npu;
  }
  if (result.is_nested()) return out_nested(result);
  if (!strided(result)) return out_sparse(result);
  return adopt(std::move(result), owned);
}

at::Tensor CpuAliases::in_nested(const at::Tensor& tensor) {
  const auto* from = at::native::get_nested_tensor_impl(tensor);
  const at::Tensor buffer = this->alias(from->get_unsafe_storage_as_tensor());
  return at::Tensor(c10::make_intrusive<at::native::NestedTensorImpl>(
      buffer.storage(), DispatchKeySet(DispatchKey::NestedTensorCPU), tensor.dtype(), from->get_nested_sizes(),
      from->get_nested_strides(), from->get_storage_offsets()));
}

at::Tensor CpuAliases::out_nested(const at::Tensor& result) {
  const auto* from = at::native::get_nested_tensor_impl(result);
  const at::Tensor buffer = adopt(from->get_unsafe_storage_as_tensor(), true);
  return at::Tensor(c10::make_intrusive<at::native::NestedTensorImpl>(
      buffer.storage(), DispatchKeySet(DispatchKey::NestedTensorPrivateUse1), result.dtype(), from->get_nested_sizes(),
      from->get_nested_strides(), from->get_storage_offsets()));
}

at::Tensor CpuAliases::in_sparse(const at::Tensor& tensor) {
  if (tensor.layout() == at::kSparse) {
    const auto& impl = static_cast<const at::SparseTensorImpl&>(*tensor.unsafeGetTensorImpl());
    auto alias = at::_sparse_coo_tensor_unsafe(this->alias(impl.indices()), this->alias(impl.values()), tensor.sizes());
    return alias._coalesced_(impl.coalesced());
  }
  const auto& impl = static_cast<const at::SparseCsrTensorImpl&>(*tensor.unsafeGetTensorImpl());
  return at::_sparse_compressed_tensor_unsafe(
      alias(impl.compressed_indices()), alias(impl.plain_indices()), alias(impl.values()), tensor.sizes(),
      at::TensorOptions().dtype(tensor.dtype()).layout(tensor.layout()).device(at::kCPU));
}

at::Tensor CpuAliases::out_sparse(const at::Tensor& result) {
  // The parts are shared with the CPU wrapper, which is about to go: fresh TensorImpls take the NPU's tags.
  auto adopt = [&](const at::Tensor& part) { return this->adopt(part.alias(), true); };
  if (result.layout() == at::kSparse) {
    const auto& from = static_cast<const at::SparseTensorImpl&>(*result.unsafeGetTensorImpl());
    auto impl =
        c10::make_intrusive<at::SparseTensorImpl>(DispatchKeySet(DispatchKey::SparsePrivateUse1), result.dtype());
    impl->resize_(from.sparse_dim(), from.dense_dim(), result.sizes());
    const bool coalesced = from.coalesced();
    Tag::device(*impl) = npu();
    impl->set_indices_and_values_unsafe(adopt(from.indices()), adopt(from.values()));
    impl->set_coalesced(coalesced);
    return at::Tensor(std::move(impl));
  }
  const auto& from = static_cast<const at::SparseCsrTensorImpl&>(*result.unsafeGetTensorImpl());
  auto impl = c10::make_intrusive<at::SparseCsrTensorImpl>(DispatchKeySet(DispatchKey::SparseCsrPrivateUse1), npu(),
                                                           result.layout(), result.dtype());
  impl->set_member_tensors(adopt(from.compressed_indices()), adopt(from.plain_indices()), adopt(from.values()),
                           result.sizes());
  return at::Tensor(std::move(impl));
}

void CpuAliases::write_back() {
  for (const Pair& pair : pairs_) {
    if (!pair.is_mutable) continue;
    if (pair.bump && !pair.npu.is_inference()) pair.npu.unsafeGetTensorImpl()->bump_version();
    if (pair.npu.is_nested()) continue;
    TensorImpl& from = *pair.alias.unsafeGetTensorImpl();
    TensorImpl& to = *pair.npu.unsafeGetTensorImpl();
    if (pair.npu.layout() == at::kSparse) {
      const at::Tensor fresh = out_sparse(pair.alias);
      const auto& source = static_cast<at::SparseTensorImpl&>(*fresh.unsafeGetTensorImpl());
      auto& target = static_cast<at::SparseTensorImpl&>(to);
      target.resize_(source.sparse_dim(), source.dense_dim(), fresh.sizes());
      target.set_indices_and_values_unsafe(source.indices(), source.values());
      target.set_coalesced(source.coalesced());
      continue;
    }
    if (!strided(pair.npu)) {
      const at::Tensor fresh = out_sparse(pair.alias);
      const auto& source = static_cast<at::SparseCsrTensorImpl&>(*fresh.unsafeGetTensorImpl());
      static_cast<at::SparseCsrTensorImpl&>(to).set_member_tensors(source.compressed_indices(), source.plain_indices(),
                                                                   source.values(), fresh.sizes());
      continue;
    }
    c10::StorageImpl& on_cpu = *from.unsafe_storage().unsafeGetStorageImpl();
    c10::StorageImpl& own = *to.unsafe_storage().unsafeGetStorageImpl();
    if (npu_storage_of(&on_cpu) != &own) {  // set_ gave it another storage
      to.set_storage_keep_dtype(adopt(pair.alias, true).storage());
    } else if (on_cpu.data() != own.data() || on_cpu.nbytes() != own.nbytes()) {  // resized
      c10::DataPtr bytes = std::move(on_cpu._mutable_data_ptr_no_checks());
      bytes.unsafe_set_device(npu());
      if (sanitizer::on() && own.data() != nullptr) {
        sanitizer::Sanitizer::get().resized(reinterpret_cast<uintptr_t>(own.data()),
                                            std::min(own.nbytes(), on_cpu.nbytes()),
                                            reinterpret_cast<uintptr_t>(bytes.get()));
      }
      own.set_data_ptr_noswap(std::move(bytes));
      own.set_nbytes(on_cpu.nbytes());
      on_cpu.set_data_ptr_noswap({const_cast<void*>(own.data()), c10::Device(c10::kCPU)});
    }
    if (from.sizes() != to.sizes() || from.strides() != to.strides() || from.storage_offset() != to.storage_offset()) {
      copy_geometry(from, to);
    }
  }
}

}  // namespace softnpu
