// Formats of NPU storages. The bytes always stay in natural order; what a private format changes is a tag and the
// padded size of the storage, so all tensors of a storage (views, detached ones) share them. The rules of formats are
// Python's (torch_npu/ops/format); here is the table, and what has to follow a storage wherever C++ takes it: clone,
// serialization, and memory that is not the device's own.
#include "torch/memory/format.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/accumulate.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <unordered_map>

#include "device/device.h"
#include "torch/compat.h"
#include SOFTNPU_PICKLER_HEADER
#include "torch/dispatch/cpu_alias.h"
#include "torch/dispatch/native_kernel.h"
#include "torch/memory/allocator.h"

namespace py = pybind11;

namespace softnpu {

namespace {

using at::Tensor;
using Sizes = std::vector<int64_t>;

// --- the table --------------------------------------------------------------------------------------------------

struct Format {
  int64_t format = 0, origin = 0;  // as npu_format_ and origin_format_ of upstream's descriptors
  Sizes sizes, padded;             // the tensor that the storage was made for; what the format makes of them
  size_t nbytes = 0;               // of the storage; one that was resized since has lost its format
  bool internal() const { return format != origin; }
};

class Formats {
 public:
  static Formats& all() {
    static auto* formats = new Formats;
    return *formats;
  }

  std::optional<Format> find(c10::StorageImpl* storage) {
    if (count_.load(std::memory_order_relaxed) == 0) return std::nullopt;
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = entries_.find(storage);
    if (found == entries_.end() || found->second.second.nbytes != storage->nbytes()) return std::nullopt;
    return found->second.second;
  }

  void set(const c10::Storage& storage, Format format) {
    format.nbytes = storage.nbytes();
    const std::lock_guard<std::mutex> lock(mutex_);
    if (entries_.size() >= limit_) {
      std::erase_if(entries_, [](const auto& entry) { return entry.second.first.expired(); });
      limit_ = std::max<size_t>(64, 2 * entries_.size());
    }
    Weak weak(storage.getWeakStorageImpl());
    entries_.insert_or_assign(storage.unsafeGetStorageImpl(), std::make_pair(std::move(weak), std::move(format)));
    count_.store(entries_.size(), std::memory_order_relaxed);
  }

  // A dead storage keeps its address as long as its entry stands (and nothing else), so a hit is always the living one.
  size_t live() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::count_if(entries_.begin(), entries_.end(),
                         [](const auto& entry) { return !entry.second.first.expired(); });
  }

 private:
  using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;
  std::mutex mutex_;
  std::atomic<size_t> count_{0};
  size_t limit_ = 64;
  std::unordered_map<c10::StorageImpl*, std::pair<Weak, Format>> entries_;
};

c10::StorageImpl* storage_of(const Tensor& tensor) {
  TORCH_CHECK(on_npu(tensor) && tensor.has_storage(), "expected a dense NPU tensor, got one on ", tensor.device());
  return tensor.storage().unsafeGetStorageImpl();
}

py::object storage_format(const Tensor& tensor) {
  const auto found = Formats::all().find(storage_of(tensor));
  if (!found) return py::none();
  return py::make_tuple(found->format, found->origin, found->sizes, found->padded);
}

void set_storage_format(const Tensor& tensor, int64_t format, int64_t origin, Sizes sizes, Sizes padded) {
  storage_of(tensor);
  Formats::all().set(tensor.storage(), {format, origin, std::move(sizes), std::move(padded)});
}

void copy_storage_format(const c10::Storage& from, const c10::Storage& to) {
  if (auto found = Formats::all().find(from.unsafeGetStorageImpl())) Formats::all().set(to, std::move(*found));
}

// --- memory -----------------------------------------------------------------------------------------------------

// A tensor of these sizes on a storage of `elements`, whose address is a multiple of `alignment` bytes if that is
// given.
Tensor padded_empty(const Sizes& sizes, int64_t elements, at::ScalarType dtype, c10::Device device, size_t alignment) {
  const Tensor made = at::empty({elements}, at::TensorOptions().dtype(dtype).device(device));
  TORCH_CHECK(c10::multiply_integers(sizes) <= elements, "empty_with_format: ", elements, " elements do not hold ",
              at::IntArrayRef(sizes));
  made.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  const size_t bytes = made.storage().nbytes();
  if (alignment == 0 || bytes == 0) return made;
  const c10::DeviceGuard guard(made.device());
  auto* held = new c10::DataPtr(npu_allocator()->allocate(bytes + alignment));
  const auto address = (reinterpret_cast<uintptr_t>(held->get()) + alignment - 1) / alignment * alignment;
  auto release = [](void* context) { delete static_cast<c10::DataPtr*>(context); };
  made.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
      {reinterpret_cast<void*>(address), held, release, made.device()});
  return made;
}

// A tensor of the device whose bytes are the host's: the device's memory does not count them.
Tensor swapped_empty(const Sizes& sizes, at::ScalarType dtype, c10::Device device) {
  const Tensor made = at::empty({0}, at::TensorOptions().dtype(dtype).device(device));
  at::detail::check_size_nonnegative(sizes);
  const size_t bytes = at::detail::computeStorageNbytesContiguous(sizes, made.dtype().itemsize());
  c10::DataPtr data = c10::GetAllocator(c10::kCPU)->allocate(bytes);
  data.unsafe_set_device(made.device());
  c10::StorageImpl& storage = *made.storage().unsafeGetStorageImpl();
  storage.set_data_ptr_noswap(std::move(data));
  storage.set_nbytes(bytes);
  made.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return made;
}

// The storage of `target` stands on the bytes of `source` from `offset` on, and keeps them alive.
void change_data_ptr(const Tensor& target, const Tensor& source, size_t offset) {
  c10::StorageImpl& storage = *storage_of(target);
  const size_t bytes = storage_of(source)->nbytes();
  TORCH_CHECK(offset <= bytes && storage.nbytes() <= bytes - offset, "change_data_ptr: outside of the source");
  auto* held = new c10::Storage(source.storage());
  auto release = [](void* context) { delete static_cast<c10::Storage*>(context); };
  storage.set_data_ptr_noswap(
      {static_cast<char*>(held->mutable_data()) + offset, held, release, c10::Device(target.device())});
}

// --- clone, data ------------------------------------------------------------------------------------------------

constexpr int64_t kFractalNz = 29, kBlock = 16;

// Whether a copy keeps the private format: only where the blocks of the format stay as they are.
bool clone_keeps(const Tensor& self, const Format& format) {
  const auto sizes = self.sizes();
  const Sizes& base = format.sizes;
  const size_t rank = sizes.size();
  if (!format.internal() || !self.is_contiguous() || rank < 2 || base.size() < 2) return false;
  if (format.format != kFractalNz) {
    return sizes.vec() == base && self.numel() == c10::multiply_integers(format.padded);
  }
  const int64_t last = sizes[rank - 1], second = sizes[rank - 2];
  if ((last % kBlock != 0 || second % kBlock != 0) && self.storage_offset() != 0) return false;
  return last == base[base.size() - 1] && second == base[base.size() - 2];
}

Tensor empty_with(const Tensor& like, int64_t format) {
  using Make = Tensor(c10::IntArrayRef, std::optional<at::ScalarType>, std::optional<at::Layout>,
                      std::optional<c10::Device>, std::optional<bool>, int64_t, bool);
  static const auto make =
      c10::Dispatcher::singleton().findSchemaOrThrow("npu::unsafe_empty_with_format", "").typed<Make>();
  return make.call(like.sizes(), like.scalar_type(), std::nullopt, like.device(), std::nullopt, format, false);
}

Tensor clone(const Tensor& self, std::optional<c10::MemoryFormat> memory_format) {
  const auto format = Formats::all().find(self.storage().unsafeGetStorageImpl());
  if (format && clone_keeps(self, *format)) return empty_with(self, format->format).copy_(self);
  NativeKernel kernel("aten::clone", {&self});
  return kernel.out(kernel.in(self).clone(memory_format));
}

// `parameter.data = tensor` moves a parameter between the host and the device, as upstream allows.
bool has_compatible_shallow_copy_type(const Tensor& self, const Tensor& from) {
  auto dense = [](const Tensor& tensor) {
    return tensor.layout() == at::kStrided && !tensor.is_quantized() && !tensor.is_nested() &&
           (on_npu(tensor) || tensor.device().is_cpu());
  };
  return self.key_set() == from.key_set() || (dense(self) && dense(from));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  SOFTNPU_LAUNCHED(m, "clone", clone);
  m.impl("_has_compatible_shallow_copy_type", &has_compatible_shallow_copy_type);
}

// --- torch.save and torch.load: the descriptor as upstream writes it, in the keys of a dictionary
// ---------------------

constexpr std::array<std::pair<const char*, int64_t>, 15> kNames{{{"NCHW", 0},
                                                                  {"NHWC", 1},
                                                                  {"ND", 2},
                                                                  {"NC1HWC0", 3},
                                                                  {"FRACTAL_Z", 4},
                                                                  {"NDHWC", 27},
                                                                  {"FRACTAL_NZ", 29},
                                                                  {"NCDHW", 30},
                                                                  {"NDC1HWC0", 32},
                                                                  {"FRACTAL_Z_3D", 33},
                                                                  {"FRACTAL_NZ_C0_16", 50},
                                                                  {"FRACTAL_NZ_C0_32", 51},
                                                                  {"FRACTAL_NZ_C0_2", 52},
                                                                  {"FRACTAL_NZ_C0_4", 53},
                                                                  {"FRACTAL_NZ_C0_8", 54}}};

using Metadata = std::unordered_map<std::string, bool>;

void write_metadata(const Tensor& tensor, Metadata& map) {
  if (!tensor.has_storage()) return;
  const auto found = Formats::all().find(tensor.storage().unsafeGetStorageImpl());
  if (!found) return;
  auto list = [&](const std::string& key, const Sizes& values) {
    std::string text = key;
    for (const int64_t value : values) text += "/" + std::to_string(value);
    map[text + "/"] = true;
  };
  auto name = [&](const std::string& key, int64_t format) {
    for (const auto& [text, number] : kNames) {
      if (number == format) map[key + "/" + text] = true;
    }
  };
  Sizes strides(found->sizes.size(), 1);
  for (size_t i = strides.size(); i-- > 1;) strides[i - 1] = strides[i] * std::max<int64_t>(found->sizes[i], 1);
  list("base_sizes_", found->sizes);
  list("base_strides_", strides);
  list("storage_sizes_", found->sizes);
  name("origin_format_", found->origin);
  name("npu_format_", found->format);
}

void read_metadata(const Tensor& tensor, Metadata& map) {
  Sizes sizes;
  int64_t format = -1, origin = -1;
  auto number = [](const std::string& text) {
    for (const auto& [name, value] : kNames) {
      if (text == name) return value;
    }
    TORCH_CHECK(false, "torch.load: a tensor was saved in the NPU format '", text, "', which is not known");
  };
  for (const auto& [key, _] : map) {
    if (key.rfind("base_sizes_/", 0) == 0) {
      size_t from = key.find('/') + 1;
      for (size_t to = key.find('/', from); to != std::string::npos; from = to + 1, to = key.find('/', from)) {
        sizes.push_back(std::stoll(key.substr(from, to - from)));
      }
    } else if (key.rfind("origin_format_/", 0) == 0) {
      origin = number(key.substr(key.find('/') + 1));
    } else if (key.rfind("npu_format_/", 0) == 0) {
      format = number(key.substr(key.find('/') + 1));
    }
  }
  if (format < 0 || origin < 0 || !tensor.has_storage()) return;
  Formats::all().set(tensor.storage(), {origin, origin, sizes, sizes});
  const at::NoGradGuard no_grad;
  using Cast = Tensor&(Tensor&, int64_t, std::optional<int64_t>, std::optional<int64_t>);
  static const auto cast =
      c10::Dispatcher::singleton().findSchemaOrThrow("npu::npu_format_cast_", "acl_format").typed<Cast>();
  Tensor target = tensor;
  cast.call(target, format, std::nullopt, std::nullopt);
}

}  // namespace

void bind_format(py::module& m) {
  m.def("storage_format", &storage_format);
  m.def("set_storage_format", &set_storage_format);
  m.def("copy_storage_format", &copy_storage_format);
  m.def("live_storage_formats", [] { return Formats::all().live(); });
  m.def("padded_empty", &padded_empty);
  m.def("swapped_empty", &swapped_empty);
  m.def("change_data_ptr", &change_data_ptr);
  torch::jit::TensorBackendMetaRegistry(c10::DeviceType::PrivateUse1, &write_metadata, &read_metadata);
}

}  // namespace softnpu
