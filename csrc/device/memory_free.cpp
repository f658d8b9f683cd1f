// What is given back: blocks to their pools, segments to the system.
#include <algorithm>
#include <limits>

#include "device/memory.h"
#include "device/pages.h"

namespace softnpu {

void CachingAllocator::free(Block* block) {
  if (block->plugin) return free_by_plugin(block);
  const Session session(*this, context_on_free_, false);
  block->allocated = false;
  slot_of(*block->segment, block->ptr) = nullptr;
  const BlockPool& pool = *block->pool;
  count(stats_.allocation, pool, -1);
  count(stats_.allocated_bytes, pool, -static_cast<int64_t>(block->size));
  count(stats_.requested_bytes, pool, -static_cast<int64_t>(block->requested));
  if (block->size >= config_.max_split_size) stats_.oversize_allocations.decrease(1);
  note(MemoryEvent::FreeRequested, block->ptr, block->size, block->stream);
  if (!block->other_streams.empty()) {
    deferred_.push_back(block);
    finish_deferred();
    return;
  }
  complete_free(block);
}

void CachingAllocator::finish_deferred() {
  auto busy = [&](const Block* block) {
    return stream_busy && std::any_of(block->other_streams.begin(), block->other_streams.end(),
                                      [&](StreamId s) { return stream_busy(device_, s); });
  };
  std::vector<Block*> waiting;
  for (Block* block : deferred_) {
    if (busy(block)) {
      waiting.push_back(block);
      continue;
    }
    block->other_streams.clear();
    complete_free(block);
  }
  deferred_ = std::move(waiting);
}

void CachingAllocator::complete_free(Block* block) {
  BlockPool& pool = *block->pool;
  count(stats_.active, pool, -1);
  count(stats_.active_bytes, pool, -static_cast<int64_t>(block->size));
  note(MemoryEvent::FreeCompleted, block->ptr, block->size, block->stream);
  release_context(block->context);
  if (&pool == &small_ && config_.caching && config_.garbage_collection_threshold == 0) {
    keep_recent(block);
  } else {
    return_to_pool(block);
  }
}

void CachingAllocator::keep_recent(Block* block) {
  Block*& place = recent_[recent_next_++ % recent_.size()];
  if (place != nullptr) return_to_pool(place);
  place = block;
}

Block* CachingAllocator::take_recent(const BlockPool& pool, size_t size, StreamId stream) {
  for (Block*& place : recent_) {
    if (place == nullptr || place->size != size || place->stream != stream || place->pool != &pool) continue;
    return std::exchange(place, nullptr);
  }
  return nullptr;
}

void CachingAllocator::flush_recent() {
  for (Block*& place : recent_) {
    if (place != nullptr) return_to_pool(std::exchange(place, nullptr));
  }
}

void CachingAllocator::return_to_pool(Block* block) {
  BlockPool& pool = *block->pool;
  block = merge(block, block->prev);
  block = merge(block, block->next);
  block->requested = 0;
  pool.insert(block);
  if (block->prev || block->next) {
    count(stats_.inactive_split, pool, 1);
    count(stats_.inactive_split_bytes, pool, static_cast<int64_t>(block->size));
  }
  const auto own = private_pools_.find(pool.owner);
  const bool abandoned = own != private_pools_.end() && own->second->retired;
  if (!config_.caching || abandoned) release_segments(pool);
  if (abandoned) retired_pools_.push_back(own->first);  // the next call sees whether it is empty
}

Block* CachingAllocator::merge(Block* block, Block* other) {
  if (other == nullptr || !other->idle) return block;
  block->pool->take(other);
  count(stats_.inactive_split, *block->pool, -1);
  count(stats_.inactive_split_bytes, *block->pool, -static_cast<int64_t>(other->size));
  Block* low = block->prev == other ? other : block;
  Block* high = low == other ? block : other;
  low->size += high->size;
  low->next = high->next;
  if (low->next) low->next->prev = low;
  drop(high);
  return low;
}

void CachingAllocator::record_stream(Block* block, StreamId stream) {
  const Session session(*this);
  auto& others = block->other_streams;
  if (stream == block->stream || std::find(others.begin(), others.end(), stream) != others.end()) return;
  others.push_back(stream);
}

void CachingAllocator::erase_stream(Block* block, StreamId stream) {
  const Session session(*this);
  std::erase(block->other_streams, stream);
}

bool CachingAllocator::release_segments(BlockPool& pool) {
  std::vector<Segment*> empty;
  for (Block* block : pool.free) {
    if (block->prev == nullptr && block->next == nullptr) empty.push_back(block->segment);
  }
  for (Segment* segment : empty) release(segment);
  // An expandable segment gives back its free tail even while its head is in use.
  for (auto& [base, segment] : segments_) {
    if (!segment->expandable || segment->pool != &pool) continue;
    Block* last = segment->first;
    while (last->next) last = last->next;
    if (!last->idle || last->prev == nullptr) continue;
    pool.take(last);
    count(stats_.inactive_split, pool, -1);
    count(stats_.inactive_split_bytes, pool, -static_cast<int64_t>(last->size));
    forget_pages(last->ptr, last->size);
    note(MemoryEvent::SegmentUnmap, last->ptr, last->size, segment->stream);
    count(stats_.reserved_bytes, pool, -static_cast<int64_t>(last->size));
    segment->size -= last->size;
    last->prev->next = nullptr;
    drop(last);
    empty.push_back(nullptr);
  }
  return !empty.empty();
}

void CachingAllocator::release(Segment* segment) {
  BlockPool& pool = *segment->pool;
  pool.take(segment->first);
  count(stats_.segment, pool, -1);
  count(stats_.reserved_bytes, pool, -static_cast<int64_t>(segment->size));
  ++stats_.num_device_free;
  if (segment->size >= config_.max_split_size) stats_.oversize_segments.decrease(1);
  note(segment->expandable ? MemoryEvent::SegmentUnmap : MemoryEvent::SegmentFree, segment->base, segment->size,
       segment->stream);
  leave_segment(*segment);
  release_pages(segment->slots, slots_bytes(*segment));
  release_pages(segment->base, segment->reserved);
  release_context(segment->context);
  drop(segment->first);
  segments_.erase(segment->base);
}

bool CachingAllocator::release_oversize(size_t size) {
  if (config_.max_split_size == SIZE_MAX || size < config_.max_split_size) return false;
  size_t released = 0;
  std::vector<Segment*> victims;
  for (auto it = large_.free.rbegin(); it != large_.free.rend() && released < size; ++it) {
    if ((*it)->size < config_.max_split_size || (*it)->prev || (*it)->next) continue;
    victims.push_back((*it)->segment);
    released += (*it)->size;
  }
  for (Segment* segment : victims) release(segment);
  return !victims.empty();
}

void CachingAllocator::collect_garbage(size_t wanted) {
  const size_t threshold = static_cast<size_t>(static_cast<double>(limit()) * config_.garbage_collection_threshold);
  size_t used = static_cast<size_t>(stats_.reserved_bytes[0].current);
  if (used + wanted <= threshold) return;
  std::vector<Block*> idle;
  for (Block* block : large_.free) {
    if (block->prev == nullptr && block->next == nullptr) idle.push_back(block);
  }
  std::sort(idle.begin(), idle.end(), [](Block* a, Block* b) { return a->idle_rounds > b->idle_rounds; });
  for (Block* block : idle) {
    if (used + wanted <= threshold) break;
    used -= block->size;
    release(block->segment);
  }
}

void CachingAllocator::empty_cache(PoolId id) {
  const Session session(*this);
  finish_deferred();
  if (id != PoolId{0, 0}) {
    const auto own = private_pools_.find(id);
    if (own == private_pools_.end()) return;
    release_segments(own->second->small);
    release_segments(own->second->large);
    return;
  }
  release_segments(small_);
  release_segments(large_);
}

}  // namespace softnpu
