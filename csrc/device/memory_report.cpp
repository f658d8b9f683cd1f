// What the allocator tells: statistics, segments, history, and the error when memory runs out.
#include <algorithm>
#include <cstdio>

#include "device/clock.h"
#include "device/memory.h"

namespace softnpu {

void Stat::increase(int64_t amount) {
  current += amount;
  peak = std::max(peak, current);
  allocated += amount;
}

void Stat::decrease(int64_t amount) {
  current -= amount;
  freed += amount;
}

std::string format_size(size_t bytes) {
  char text[64];
  const double value = static_cast<double>(bytes);
  if (bytes <= 1024) {
    std::snprintf(text, sizeof text, "%zu bytes", bytes);
  } else if (bytes <= (size_t{1} << 20)) {
    std::snprintf(text, sizeof text, "%.2f KiB", value / 1024.0);
  } else if (bytes <= (size_t{1} << 30)) {
    std::snprintf(text, sizeof text, "%.2f MiB", value / 1048576.0);
  } else {
    std::snprintf(text, sizeof text, "%.2f GiB", value / 1073741824.0);
  }
  return text;
}

MemoryStats CachingAllocator::stats() {
  const Session session(*this);
  return stats_;
}

size_t CachingAllocator::reserved() {
  const Session session(*this);
  return static_cast<size_t>(stats_.reserved_bytes[0].current);
}

namespace {
template <class Each>
void each_stat(MemoryStats& stats, Each each) {
  for (StatArray* array :
       {&stats.allocation, &stats.segment, &stats.active, &stats.inactive_split, &stats.allocated_bytes,
        &stats.reserved_bytes, &stats.active_bytes, &stats.inactive_split_bytes, &stats.requested_bytes}) {
    for (Stat& stat : *array) each(stat);
  }
  each(stats.oversize_allocations);
  each(stats.oversize_segments);
}
}  // namespace

void CachingAllocator::reset_peak() {
  const Session session(*this);
  each_stat(stats_, [](Stat& stat) { stat.reset_peak(); });
}

void CachingAllocator::reset_accumulated() {
  const Session session(*this);
  each_stat(stats_, [](Stat& stat) { stat.reset_accumulated(); });
  stats_.num_alloc_retries = stats_.num_ooms = stats_.num_sync_all_streams = 0;
  stats_.num_device_alloc = stats_.num_device_free = 0;
}

std::vector<SegmentInfo> CachingAllocator::segments() {
  const Session session(*this);
  std::vector<SegmentInfo> found;
  for (const auto& [base, segment] : segments_) {
    SegmentInfo info{reinterpret_cast<uintptr_t>(base),
                     segment->size,
                     0,
                     0,
                     0,
                     segment->stream,
                     segment->pool->small,
                     segment->expandable,
                     segment->pool->owner,
                     {}};
    for (const Block* block = segment->first; block; block = block->next) {
      const bool active = !block->idle;
      info.blocks.push_back({reinterpret_cast<uintptr_t>(block->ptr), block->size, block->requested, block->allocated,
                             active, block->context});
      if (block->allocated) {
        info.allocated += block->size;
        info.requested += block->requested;
      }
      if (active) info.active += block->size;
    }
    found.push_back(std::move(info));
  }
  return found;
}

void CachingAllocator::set_fraction(double fraction) {
  const Session session(*this);
  fraction_ = fraction;
}

void CachingAllocator::configure(const AllocatorConfig& config) {
  const Session session(*this);
  config_ = config;
}

void CachingAllocator::record_history(bool on, size_t most, ContextFn context, bool context_on_free) {
  auto fresh = on && context ? std::make_shared<ContextFn>(std::move(context)) : nullptr;
  {
    const std::lock_guard<std::mutex> lock(context_mutex_);
    std::swap(context_fn_, fresh);  // the old one goes at the end of this function
  }
  const Session session(*this);
  history_on_ = on;
  history_most_ = most;
  context_on_free_ = on && context_on_free;
  for (MemoryEvent& event : history_) release_context(event.context);
  history_.clear();
  history_next_ = 0;
}

std::shared_ptr<void> CachingAllocator::gather() {
  if (!history_on_) return nullptr;
  std::shared_ptr<ContextFn> context;
  {
    const std::lock_guard<std::mutex> lock(context_mutex_);
    context = context_fn_;
  }
  return context ? (*context)() : nullptr;
}

void CachingAllocator::release_context(std::shared_ptr<void>& context) {
  if (context) unused_contexts_.push_back(std::move(context));
  context.reset();
}

CachingAllocator::Session::Session(CachingAllocator& allocator, bool notes, bool flushes) : allocator_(allocator) {
  if (notes) context_ = allocator.gather();
  allocator_.mutex_.lock();
  if (flushes) allocator_.flush_recent();
  if (!allocator_.retired_pools_.empty()) allocator_.drop_retired_pools();
  if (notes) {
    outer_ = std::move(allocator_.context_);
    allocator_.context_ = context_;
  }
}

CachingAllocator::Session::~Session() {
  std::swap(unused_, allocator_.unused_contexts_);
  if (context_ || outer_) allocator_.context_ = std::move(outer_);
  allocator_.mutex_.unlock();
}

std::vector<MemoryEvent> CachingAllocator::history() {
  const Session session(*this);
  std::vector<MemoryEvent> ordered;
  ordered.reserve(history_.size());
  for (size_t i = 0; i < history_.size(); ++i) {
    ordered.push_back(history_[(history_next_ + i) % history_.size()]);
  }
  return ordered;
}

void CachingAllocator::note(MemoryEvent::Action action, const void* address, size_t size, StreamId stream) {
  if (!history_on_ || history_most_ == 0) return;
  MemoryEvent event{action, reinterpret_cast<uintptr_t>(address), size, stream, wall_clock_ns(), context_};
  if (history_.size() < history_most_) {
    history_.push_back(std::move(event));
    return;
  }
  release_context(history_[history_next_].context);
  history_[history_next_] = std::move(event);
  history_next_ = (history_next_ + 1) % history_most_;
}

void CachingAllocator::out_of_memory(size_t wanted) {
  ++stats_.num_ooms;
  const size_t used = static_cast<size_t>(stats_.reserved_bytes[0].current);
  const size_t left = capacity_ > used ? capacity_ - used : 0;
  note(MemoryEvent::Oom, reinterpret_cast<void*>(left), wanted, 0);
  std::string allowed;
  if (fraction_ < 1.0) allowed = format_size(limit()) + " allowed; ";
  throw OutOfMemory("NPU out of memory. Tried to allocate " + format_size(wanted) + " (NPU " + std::to_string(device_) +
                    "; " + format_size(capacity_) + " total capacity; " +
                    format_size(static_cast<size_t>(stats_.allocated_bytes[0].current)) + " already allocated; " +
                    format_size(static_cast<size_t>(stats_.active_bytes[0].current)) + " current active; " +
                    format_size(left) + " free; " + allowed + format_size(used) +
                    " reserved in total by PyTorch). If much more is reserved than allocated, set max_split_size_mb "
                    "or expandable_segments in PYTORCH_NPU_ALLOC_CONF against fragmentation.");
}

}  // namespace softnpu
