#include "torch/memory/allocator.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <iterator>
#include <limits>
#include <map>
#include <mutex>
#include <utility>

#include "device/device.h"
#include "device/sanitizer.h"

namespace softnpu {

namespace {

thread_local int kernel_device = -1;
thread_local Allocations* log = nullptr;
thread_local std::set<const void*>* written_memory = nullptr;
thread_local const Allocations* served = nullptr;
thread_local size_t next_served = 0;

// Host memory that a kernel under observation allocates: its frees are noted too, by whichever thread.
struct Learning {
  std::mutex mutex;
  HostSteps* steps = nullptr;
  std::vector<const void*>* made = nullptr;
  std::map<const void*, int64_t> open;  // address -> number; -1: nobody asks any more
};
Learning& learning() {
  static auto* one = new Learning;
  return *one;
}
thread_local bool learns = false;
std::atomic<bool> learned_any{false};
c10::DeleterFnPtr free_of_host = nullptr;

bool free_learned(void* address) {
  Learning& all = learning();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.open.find(address);
  if (found == all.open.end()) return false;
  if (found->second >= 0 && all.steps != nullptr) all.steps->push_back({0, found->second});
  all.open.erase(found);
  free_of_host(address);
  return true;
}

c10::DataPtr learn_allocation(c10::DataPtr data, size_t bytes) {
  if (bytes == 0) return data;
  Learning& all = learning();
  const std::lock_guard<std::mutex> lock(all.mutex);
  void* address = data.release_context();
  all.open[address] = static_cast<int64_t>(all.made->size());
  all.made->push_back(address);
  all.steps->push_back({bytes, -1});
  return {address, address, [](void* at) { free_learned(at); }, c10::Device(c10::kCPU)};
}

void ignore_address(void*) {}  // the graph's pool keeps the bytes

void free_address(void* address) {
  // A forked child inherits tensors but no device; the allocator's lock may be held by a thread that it does not have.
  if (in_forked_child()) return;
  Block* block = block_at(address);
  if (sanitizer::on()) sanitizer::Sanitizer::get().freed(*block);
  block->allocator->free(block);
}

std::atomic<bool> counting_rejections = false;
std::mutex rejected_mutex;
std::map<int, int64_t> rejected;  // device -> requests

Block* allocate_block(int index, size_t bytes) {
  constexpr size_t kExabyte = size_t{1} << 60;
  TORCH_CHECK_WITH(OutOfMemoryError, bytes < kExabyte, "NPU out of memory. Tried to allocate more than 1EB memory.");
  try {
    Block* block = device(index).memory.allocate(bytes, current_stream(index));
    if (sanitizer::on()) sanitizer::Sanitizer::get().allocated(*block);
    return block;
  } catch (const OutOfMemory& error) {
    if (counting_rejections) {
      const std::lock_guard<std::mutex> lock(rejected_mutex);
      ++rejected[index];
    }
    TORCH_CHECK_WITH(OutOfMemoryError, false, error.what());
  }
}

class NpuAllocator final : public compat::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    ensure_started();
    const int index = current_device();
    return allocate_on(index, bytes, c10::Device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(index)));
  }
  void copy_data(void* to, const void* from, size_t count) const override { default_copy_data(to, from, count); }
  bool initialized() override { return started(); }
  void emptyCache(compat::MempoolId pool) override {
    for (int i = 0; i < device_count(); ++i) {
      if (sanitizer::on()) sanitizer::Sanitizer::get().everything_ordered(i);
      device(i).memory.empty_cache(pool);
    }
  }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    Block* block = block_of(data);
    if (block == nullptr) return;
    block->allocator->record_stream(block, stream.id());
    if (sanitizer::on()) sanitizer::Sanitizer::get().record_stream(*block, stream.id());
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override;
  void resetAccumulatedStats(c10::DeviceIndex index) override { device(index).memory.reset_accumulated(); }
  void resetPeakStats(c10::DeviceIndex index) override { device(index).memory.reset_peak(); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    CachingAllocator& allocator = device(index).memory;
    return {allocator.capacity() - std::min(allocator.reserved(), allocator.capacity()), allocator.capacity()};
  }
};

c10::CachingAllocator::Stat convert(const Stat& from) {
  c10::CachingAllocator::Stat to;
  to.current = from.current;
  to.peak = from.peak;
  to.allocated = from.allocated;
  to.freed = from.freed;
  return to;
}

c10::CachingAllocator::StatArray convert(const StatArray& from) {
  c10::CachingAllocator::StatArray to;
  for (size_t i = 0; i < from.size(); ++i) to[i] = convert(from[i]);
  return to;
}

c10::CachingDeviceAllocator::DeviceStats NpuAllocator::getDeviceStats(c10::DeviceIndex index) {
  const MemoryStats from = device(index).memory.stats();
  c10::CachingDeviceAllocator::DeviceStats to;
  to.allocation = convert(from.allocation);
  to.segment = convert(from.segment);
  to.active = convert(from.active);
  to.inactive_split = convert(from.inactive_split);
  to.allocated_bytes = convert(from.allocated_bytes);
  to.reserved_bytes = convert(from.reserved_bytes);
  to.active_bytes = convert(from.active_bytes);
  to.inactive_split_bytes = convert(from.inactive_split_bytes);
  to.requested_bytes = convert(from.requested_bytes);
  to.num_alloc_retries = from.num_alloc_retries;
  to.num_ooms = from.num_ooms;
  to.num_sync_all_streams = from.num_sync_all_streams;
  to.num_device_alloc = from.num_device_alloc;
  to.num_device_free = from.num_device_free;
  to.oversize_allocations = convert(from.oversize_allocations);
  to.oversize_segments = convert(from.oversize_segments);
  to.max_split_size = static_cast<int64_t>(device(index).memory.config().max_split_size);  // no limit is -1
  return to;
}

NpuAllocator& npu_allocator_instance() {
  static auto* allocator = new NpuAllocator;
  return *allocator;
}

// Stands in front of PyTorch's CPU allocator; inside a kernel it hands out device memory as CPU memory.
class KernelCpuAllocator final : public c10::Allocator {
 public:
  explicit KernelCpuAllocator(c10::Allocator* host) : host_(host) {
    host_deleter_ = free_of_host = host->raw_deleter();
  }
  c10::DataPtr allocate(size_t bytes) override {
    if (kernel_device < 0) {
      return C10_UNLIKELY(learns) ? learn_allocation(host_->allocate(bytes), bytes) : host_->allocate(bytes);
    }
    if (C10_UNLIKELY(served != nullptr) && next_served < served->size() && (*served)[next_served].bytes == bytes) {
      void* at = (*served)[next_served++].at;
      return {at, at, &ignore_address, c10::Device(c10::kCPU)};
    }
    c10::DataPtr data = allocate_on(kernel_device, bytes, c10::Device(c10::kCPU));
    if (C10_UNLIKELY(log != nullptr) && bytes > 0) {
      log->push_back({data.get(), bytes});
    } else if (C10_UNLIKELY(written_memory != nullptr)) {
      written_memory->erase(data.get());
    }
    return data;
  }
  // oneDNN frees by raw pointer, perhaps outside the kernel that allocated: the address tells whose it is.
  c10::DeleterFnPtr raw_deleter() const override { return &KernelCpuAllocator::free_raw; }
  bool is_simple_data_ptr(const c10::DataPtr& data) const override { return host_->is_simple_data_ptr(data); }
  void copy_data(void* to, const void* from, size_t count) const override { default_copy_data(to, from, count); }

 private:
  static bool is_served(const void* address) {
    return served != nullptr && std::any_of(served->begin(), served->begin() + static_cast<int64_t>(next_served),
                                            [address](const Allocation& one) { return one.at == address; });
  }
  static void free_raw(void* address) {
    if (is_served(address)) return;
    if (block_at(address) != nullptr) {
      free_address(address);
    } else if (!learned_any || !free_learned(address)) {
      host_deleter_(address);
    }
  }
  c10::Allocator* host_;
  static inline c10::DeleterFnPtr host_deleter_ = nullptr;
};

// Page-aligned host memory that remembers its ranges, with a cache of freed blocks by size.
class PinnedAllocator final : public compat::HostAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &c10::detail::deleteNothing, c10::kCPU};
    void* at = take(bytes);
    if (sanitizer::on()) sanitizer::Sanitizer::get().pinned(reinterpret_cast<uintptr_t>(at), bytes);
    return {at, at, &PinnedAllocator::release, c10::kCPU};
  }
  bool record_event(void*, void*, c10::Stream) override { return true; }  // copies end before they return
  void empty_cache() override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto [size, at] : free_) give_back(at, size);
    free_.clear();
  }
  at::HostStats get_stats() override {
    std::lock_guard<std::mutex> lock(mutex_);
    return stats_;
  }
  void reset_accumulated_stats() override {
    std::lock_guard<std::mutex> lock(mutex_);
    each([](at::Stat& stat) { stat.reset_accumulated(); });
    stats_.num_host_alloc = stats_.num_host_free = 0;
    stats_.host_alloc_time.reset_accumulated();
    stats_.host_free_time.reset_accumulated();
  }
  void reset_peak_stats() override {
    std::lock_guard<std::mutex> lock(mutex_);
    each([](at::Stat& stat) { stat.reset_peak(); });
    stats_.host_alloc_time.reset_peak();
    stats_.host_free_time.reset_peak();
  }
  void copy_data(void* to, const void* from, size_t count) const override { default_copy_data(to, from, count); }
  void configure(size_t round_threshold, size_t cached_limit) {
    std::lock_guard<std::mutex> lock(mutex_);
    round_threshold_ = round_threshold;
    cached_limit_ = cached_limit;
  }
  std::pair<const void*, size_t> block(const void* address) {
    std::lock_guard<std::mutex> lock(mutex_);
    char* at = static_cast<char*>(const_cast<void*>(address));
    auto it = blocks_.upper_bound(at);
    if (it == blocks_.begin()) return {nullptr, 0};
    --it;
    return at < it->first + it->second ? std::make_pair(it->first, it->second) : std::make_pair(nullptr, size_t{0});
  }
  static PinnedAllocator& instance() {
    static auto* allocator = new PinnedAllocator;
    return *allocator;
  }

 private:
  void* take(size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    const size_t size = round(bytes);
    void* at = nullptr;
    const auto [first, last] = free_.equal_range(size);
    if (first != last) {  // the one freed last
      const auto cached = std::prev(last);
      at = cached->second;
      free_.erase(cached);
    } else {
      const Clock::time_point start = Clock::now();
      at = std::aligned_alloc(4096, size);
      TORCH_CHECK_WITH(OutOfMemoryError, at != nullptr, "out of host memory: tried to pin ", bytes, " bytes");
      stats_.host_alloc_time.increase(microseconds_since(start));
      blocks_[static_cast<char*>(at)] = size;
      counts_.allocations.increase(1);
      counts_.allocated_bytes.increase(size);
      ++stats_.num_host_alloc;
    }
    counts_.active_requests.increase(1);
    counts_.active_bytes.increase(size);
    return at;
  }
  using Clock = std::chrono::steady_clock;
  static int64_t microseconds_since(Clock::time_point start) {
    return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start).count();
  }
  // To a power of two, so that blocks are reused; but not what is large, or will not be kept.
  size_t round(size_t bytes) const {
    constexpr size_t page = 4096;
    if (bytes > round_threshold_ || bytes > cached_limit_) return (bytes + page - 1) / page * page;
    return std::max(page, std::bit_ceil(bytes));
  }
  void give_back(void* at, size_t size) {
    const Clock::time_point start = Clock::now();
    blocks_.erase(static_cast<char*>(at));
    std::free(at);
    stats_.host_free_time.increase(microseconds_since(start));
    counts_.allocations.decrease(1);
    counts_.allocated_bytes.decrease(size);
    ++stats_.num_host_free;
  }
  static void release(void* at) {
    PinnedAllocator& self = instance();
    if (sanitizer::on()) sanitizer::Sanitizer::get().forget_pinned(reinterpret_cast<uintptr_t>(at));
    std::lock_guard<std::mutex> lock(self.mutex_);
    const size_t size = self.blocks_.at(static_cast<char*>(at));
    self.counts_.active_requests.decrease(1);
    self.counts_.active_bytes.decrease(size);
    if (size > self.cached_limit_) {
      self.give_back(at, size);
    } else {
      self.free_.emplace(size, at);
    }
  }
  template <class Each>
  void each(Each function) {
    for (at::Stat* stat :
         {&counts_.allocations, &counts_.allocated_bytes, &counts_.active_requests, &counts_.active_bytes}) {
      function(*stat);
    }
  }

  std::mutex mutex_;
  std::map<char*, size_t> blocks_;
  std::multimap<size_t, void*> free_;
  size_t round_threshold_ = std::numeric_limits<size_t>::max();
  size_t cached_limit_ = std::numeric_limits<size_t>::max();
  at::HostStats stats_;
  const compat::HostCounts counts_ = compat::counts_of(stats_);
};

}  // namespace

compat::DeviceAllocator* npu_allocator() { return &npu_allocator_instance(); }

c10::DataPtr allocate_on(int index, size_t bytes, c10::Device as) {
  if (bytes == 0) return {nullptr, nullptr, &c10::detail::deleteNothing, as};
  Block* block = allocate_block(index, bytes);
  return {block->ptr, block->ptr, &free_address, as};
}

Block* block_of(const c10::DataPtr& data) {
  return data.get_deleter() == &free_address ? block_at(data.get()) : nullptr;
}

KernelScope::KernelScope(int device) noexcept : before_(kernel_device), before_device_(exchange_device(device)) {
  kernel_device = device;
}

KernelScope::~KernelScope() {
  kernel_device = before_;
  exchange_device(before_device_);
}

HostScope::HostScope() noexcept : before_(std::exchange(kernel_device, -1)) {}
HostScope::~HostScope() { kernel_device = before_; }

int KernelScope::device() noexcept { return kernel_device; }

LogAllocations::LogAllocations(Allocations& to) : before_(std::exchange(log, &to)) {}
LogAllocations::~LogAllocations() { log = before_; }

NoticeFresh::NoticeFresh(std::set<const void*>& written) { written_memory = &written; }
NoticeFresh::~NoticeFresh() { written_memory = nullptr; }

ServeAllocations::ServeAllocations(const Allocations& from)
    : before_(std::exchange(served, &from)), before_next_(std::exchange(next_served, 0)) {}
ServeAllocations::~ServeAllocations() {
  served = before_;
  next_served = before_next_;
}

LearnHostSteps::LearnHostSteps(HostSteps& to, std::vector<const void*>& made) {
  const std::lock_guard<std::mutex> lock(learning().mutex);
  learning().steps = &to;
  learning().made = &made;
  learns = learned_any = true;
}
LearnHostSteps::~LearnHostSteps() {
  Learning& all = learning();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.steps = nullptr;
  for (auto& [address, number] : all.open) number = -1;
  learns = false;
}

void count_rejections(bool on) { counting_rejections = on; }

int64_t rejections(int device) {
  const std::lock_guard<std::mutex> lock(rejected_mutex);
  return rejected[device];
}

void reset_rejections(int device) {
  const std::lock_guard<std::mutex> lock(rejected_mutex);
  rejected.erase(device);
}

void configure_pinned(size_t round_threshold, size_t cached_limit) {
  PinnedAllocator::instance().configure(round_threshold, cached_limit);
}

std::pair<const void*, size_t> pinned_block(const void* address) { return PinnedAllocator::instance().block(address); }
bool is_pinned(const void* address) { return pinned_block(address).first != nullptr; }

void install_allocators() {
  c10::SetAllocator(c10::kPrivateUse1, npu_allocator());
  c10::SetAllocator(c10::kCPU, new KernelCpuAllocator(c10::GetAllocator(c10::kCPU)), 100);
  compat::set_host_allocator(&PinnedAllocator::instance());
}

}  // namespace softnpu
