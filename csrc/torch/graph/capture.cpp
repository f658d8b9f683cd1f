#include "torch/graph/capture.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <cstring>

#include "device/device.h"
#include "device/pages.h"
#include "torch/dispatch/cpu_alias.h"
#include "torch/dispatch/ivalues.h"
#include "torch/sanitizer/stage.h"

namespace softnpu {

namespace {

using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::TensorImpl;

struct Active {
  std::mutex mutex;
  std::vector<Capture*> captures;
};

Active& active() {
  static auto* all = new Active;
  return *all;
}

uint64_t next_id() {
  static std::atomic<uint64_t> next{1};
  return next++;
}

}  // namespace

const void* base_of(const Tensor& tensor) {
  return tensor.has_storage() ? tensor.unsafeGetTensorImpl()->unsafe_storage().data() : nullptr;
}

bool plain(const Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && !tensor.is_nested() && !tensor.is_quantized() &&
         tensor.has_storage();
}

std::pair<char*, size_t> extent(const Tensor& tensor) {
  size_t last = 0;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    last += static_cast<size_t>((tensor.size(i) - 1) * tensor.stride(i));
  }
  const size_t item = tensor.dtype().itemsize();
  char* start = static_cast<char*>(const_cast<void*>(base_of(tensor)));
  const size_t size = tensor.numel() == 0 ? 0 : (last + 1) * item;
  return {start + static_cast<size_t>(tensor.storage_offset()) * item, size};
}

namespace {

c10::Storage storage_on(const Tensor& tensor, c10::Device device, bool owned) {
  return alias_storage(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl(), device, owned);
}

Tensor tensor_on(const Tensor& like, c10::Storage storage) {
  const TensorImpl& from = *like.unsafeGetTensorImpl();
  const DispatchKeySet keys = on_npu(like) ? from.key_set() : DispatchKeySet(DispatchKey::CPU);
  auto impl = c10::make_intrusive<TensorImpl>(TensorImpl::VIEW, std::move(storage), keys, like.dtype());
  impl->set_sizes_and_strides(from.sizes(), from.strides(), from.storage_offset());
  if (from.is_wrapped_number()) impl->set_wrapped_number(true);
  if (like.is_conj()) impl->_set_conj(true);
  if (like.is_neg()) impl->_set_neg(true);
  return Tensor::wrap_tensor_impl(std::move(impl));
}

}  // namespace

Tensor value_of(const Tensor& tensor) {
  const auto [at, size] = extent(tensor);
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), size,
                                                       c10::GetDefaultCPUAllocator(), false);
  if (tensor.numel() > 0) std::memcpy(storage->mutable_data(), at, size);
  const Tensor copy = tensor_on(tensor, c10::Storage(std::move(storage)));
  copy.unsafeGetTensorImpl()->set_storage_offset(0);
  return copy;
}

void raise_acl(const std::string& call, int code, const std::string& text) {
  TORCH_CHECK(false, "NPU function error: ", call, ", error code is ", code, "\n[Error]: ", text,
              "\nERR00100 PTA call acl api failed");
}

// --- actions -------------------------------------------------------------------------------------------------------

void KernelCall::run() const {
  Stack stack(arguments.begin(), arguments.end());
  const ServeAllocations serve(allocations);
  call(&stack);
  size_t next = 0;
  each_new_tensor(stack, stack.size(), arguments, [&](const Tensor& result) {
    const Tensor& place = results[next++];
    if (result.has_storage() && place.has_storage() && result.const_data_ptr() == place.const_data_ptr()) return;
    place.copy_(result);
  });
}

// --- the capture ---------------------------------------------------------------------------------------------------

Capture::Capture(int device, StreamId origin, PoolId pool, CaptureMode mode)
    : device(device),
      origin(origin),
      pool(pool),
      mode(mode),
      id(next_id()),
      footprint(sanitizer::on() ? sanitizer::Sanitizer::get().begin_capture(pool) : nullptr),
      thread_(std::this_thread::get_id()) {
  streams_[static_cast<size_t>(origin)] = true;
  softnpu::device(device).memory.begin_pool(pool, [this](StreamId stream) { return holds(stream); });
  const std::lock_guard<std::mutex> lock(active().mutex);
  active().captures.push_back(this);
  Stages::set(kCaptureStage, true);
  if (Queues::shuffled()) Queues::all().pause_shuffle(true);
}

Capture::~Capture() {
  {
    const std::lock_guard<std::mutex> lock(active().mutex);
    std::erase(active().captures, this);
    Stages::set(kCaptureStage, !active().captures.empty());
    if (Queues::shuffled()) Queues::all().pause_shuffle(!active().captures.empty());
  }
  softnpu::device(device).memory.end_pool(pool);
}

Capture* Capture::of(int device, StreamId stream) {
  if (!any()) return nullptr;
  const std::lock_guard<std::mutex> lock(active().mutex);
  for (Capture* capture : active().captures) {
    if (capture->device == device && capture->holds(stream)) return capture;
  }
  return nullptr;
}

Capture* Capture::of_event(const Event& event) {
  if (event.capture == 0 || !any()) return nullptr;
  const std::lock_guard<std::mutex> lock(active().mutex);
  for (Capture* capture : active().captures) {
    if (capture->id == event.capture) return capture;
  }
  return nullptr;
}

void Capture::forbid_device_wait(const char* call) {
  if (!any()) return;
  bool forbidden = false;
  {
    const std::lock_guard<std::mutex> lock(active().mutex);
    for (Capture* capture : active().captures) {
      const bool here = capture->thread_ == std::this_thread::get_id();
      if (capture->mode == CaptureMode::Global || (capture->mode == CaptureMode::ThreadLocal && here)) {
        forbidden = true;
      }
    }
  }
  if (!forbidden) return;
  const std::string text = std::string(call) +
                           " waits for the whole device, which the capture mode forbids while a graph is captured; "
                           "move it before the capture or after it.";
  raise_acl(call, acl::kModeForbids, text);
}

void Capture::forbid_stream_wait(int device, StreamId stream, const char* call) {
  if (of(device, stream) == nullptr) return;
  const std::string text = std::string(call) + " makes the host wait for stream " + std::to_string(stream) +
                           ", which is being captured into a graph and computes nothing yet; move it out of the "
                           "capture.";
  raise_acl(call, acl::kStreamCaptured, text);
}

bool Capture::holds(StreamId stream) const {
  return stream >= 0 && static_cast<size_t>(stream) < streams_.size() && streams_[static_cast<size_t>(stream)];
}

void Capture::fail(int code, std::string text) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (failure_ != 0) return;
  failure_ = code;
  failure_text_ = std::move(text);
}

void Capture::check_valid() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (failure_ == 0) return;
  raise_acl("aclmdlRICapture", failure_, "the capture has failed and must be ended: " + failure_text_);
}

void Capture::add(StreamId stream, decltype(Step::what) what) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool work = !std::holds_alternative<Mark>(what) && !std::holds_alternative<WaitMark>(what);
  steps_.push_back({stream, std::move(what)});
  if (work) last_[stream] = steps_.size();
}

size_t Capture::mark(StreamId stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const size_t at = steps_.size();
  steps_.push_back({stream, Mark{}});
  Clock clock = clocks_[stream];
  clock[stream] = at;
  marks_[at] = std::move(clock);
  return at;
}

void Capture::wait_mark(StreamId stream, size_t mark) {
  const std::lock_guard<std::mutex> lock(mutex_);
  streams_[static_cast<size_t>(stream)] = true;
  for (const auto& [from, upto] : marks_.at(mark)) {
    size_t& known = clocks_[stream][from];
    known = std::max(known, upto);
  }
  steps_.push_back({stream, WaitMark{mark}});
}

std::vector<Step> Capture::finish() {
  restore();
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto& joined = clocks_[origin];
  for (const auto& [stream, last] : last_) {
    if (stream == origin || failure_ != 0) continue;
    const auto known = joined.find(stream);
    if (known == joined.end() || known->second < last) {
      failure_ = acl::kUnjoined;
      failure_text_ = "stream " + std::to_string(stream) + " took part in the capture that began on stream " +
                      std::to_string(origin) + " and was not joined to it: record an event after its last task and " +
                      "let the capturing stream wait for it.";
    }
  }
  if (failure_ == 0 && !open_groups_.empty()) {
    failure_ = acl::kGroupStatus;
    failure_text_ = "graph_task_group_begin on stream " + std::to_string(open_groups_.begin()->first) +
                    " has no graph_task_group_end.";
  }
  if (failure_ != 0) raise_acl("aclmdlRICaptureEnd", failure_, failure_text_);
  return std::move(steps_);
}

bool Capture::in_pool(const Tensor& tensor) const {
  if (!tensor.has_storage()) return false;
  const Block* block = block_at(base_of(tensor));
  return block != nullptr && block->pool != nullptr && block->pool->owner == pool;
}

void Capture::save(const Tensor& target) {
  if (!plain(target) || target.numel() == 0 || in_pool(target)) return;
  const auto [at, size] = extent(target);
  if (!saved_ranges_.emplace(at, size).second) return;
  Saved saved{storage_on(target, c10::kCPU, true), at, size, {}};
  for (const ByteRange& part : touched_ranges(at, size)) {
    saved.parts.emplace(part.start, std::vector<char>(at + part.start, at + part.start + part.size));
  }
  saved_.push_back(std::move(saved));
}

void Capture::Saved::put_back() const {
  for (const ByteRange& now : touched_ranges(at, size)) {
    const size_t end = now.start + now.size;
    size_t next = now.start;  // zero up to each part: these pages were not touched before
    for (auto part = parts.lower_bound(next); part != parts.end() && part->first < end; ++part) {
      std::memset(at + next, 0, part->first - next);
      next = part->first + part->second.size();
    }
    if (next < end) std::memset(at + next, 0, end - next);
  }
  for (const auto& [start, bytes] : parts) std::memcpy(at + start, bytes.data(), bytes.size());
}

std::shared_ptr<GraphRandom> Capture::random(const at::Generator& generator) {
  for (const auto& known : randoms_) {
    if (known->npu == generator) return known;
  }
  auto fresh = std::make_shared<GraphRandom>();
  fresh->npu = generator;
  fresh->start = generator.unsafeGetGeneratorImpl()->get_offset();
  randoms_.push_back(fresh);
  return fresh;
}

void GraphRandom::begin_replay() {
  c10::GeneratorImpl* generator = npu.unsafeGetGeneratorImpl();
  base = generator->get_offset();
  generator->set_offset(base + increment);
}

void Capture::restore() {
  while (!saved_.empty()) {  // the oldest value last
    saved_.back().put_back();
    saved_.pop_back();
  }
  for (const auto& random : randoms_) {
    c10::GeneratorImpl* generator = random->npu.unsafeGetGeneratorImpl();
    random->increment = generator->get_offset() - random->start;
    generator->set_offset(random->start);
  }
}

Tensor Capture::keep(const Tensor& tensor) {
  if (!plain(tensor)) return tensor;
  const bool owned = !in_pool(tensor);
  const c10::Device device = on_npu(tensor) ? tensor.device() : c10::Device(c10::kCPU);
  return tensor_on(tensor, storage_on(tensor, device, owned));
}

Tensor pool_ref(const Tensor& tensor) {
  TORCH_CHECK(on_npu(tensor) && plain(tensor), "pool_ref_tensor: expected a dense NPU tensor");
  check_inside(tensor, {});
  const Block* block = block_at(base_of(tensor));
  const bool pooled = block != nullptr && block->pool != nullptr && block->pool->owner != PoolId{0, 0};
  c10::Storage storage = storage_on(tensor, tensor.device(), !pooled);
  if (pooled && sanitizer::on()) note_weak_reference(*storage.unsafeGetStorageImpl(), *block);
  return tensor_on(tensor, std::move(storage));
}

void Capture::group_begin(StreamId stream) {
  check_valid();
  const std::lock_guard<std::mutex> lock(mutex_);
  auto& group = open_groups_[stream];
  if (group) {
    raise_acl("aclmdlRICaptureTaskGrpBegin", acl::kGroupStatus,
              "a task group is open on stream " + std::to_string(stream) + " already; end it first.");
  }
  static std::atomic<uint64_t> next{1};
  group = std::make_shared<TaskGroup>();
  group->id = next++;
}

std::shared_ptr<TaskGroup> Capture::group_end(StreamId stream) {
  check_valid();
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = open_groups_.find(stream);
  if (found == open_groups_.end()) {
    raise_acl("aclmdlRICaptureTaskGrpEnd", acl::kGroupStatus,
              "no task group is open on stream " + std::to_string(stream) + ".");
  }
  auto group = std::move(found->second);
  open_groups_.erase(found);
  return group;
}

std::shared_ptr<TaskGroup> Capture::group(StreamId stream) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = open_groups_.find(stream);
  return found == open_groups_.end() ? nullptr : found->second;
}

}  // namespace softnpu
