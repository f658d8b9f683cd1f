#include "device/memory.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdio>
#include <limits>
#include <tuple>

#include "device/pages.h"

namespace softnpu {

std::function<bool(int, StreamId)> CachingAllocator::stream_busy;
std::function<bool(int, size_t)> CachingAllocator::allocation_fault;

bool BlockOrder::operator()(const Block* a, const Block* b) const {
  return std::tie(a->stream, a->size, a->ptr) < std::tie(b->stream, b->size, b->ptr);
}

void BlockPool::insert(Block* block) {
  block->idle = true;
  if (spare.empty()) {
    free.insert(block);
  } else {
    spare.value() = block;
    free.insert(std::move(spare));
  }
}

void BlockPool::take(Block* block) {
  block->idle = false;
  auto node = free.extract(block);
  if (spare.empty()) spare = std::move(node);
}

Block* CachingAllocator::new_block(Segment* segment, BlockPool& pool, StreamId stream, char* at, size_t size) {
  Block* block = nullptr;
  if (spare_blocks_.empty()) {
    block = new Block;
  } else {
    block = spare_blocks_.back();
    spare_blocks_.pop_back();
  }
  block->allocator = this;
  block->segment = segment;
  block->pool = &pool;
  block->stream = stream;
  block->ptr = at;
  block->size = size;
  return block;
}

void CachingAllocator::drop(Block* block) {
  if (spare_blocks_.size() >= 256) {
    delete block;
    return;
  }
  *block = Block{};
  spare_blocks_.push_back(block);
}

void CachingAllocator::count(StatArray& array, const BlockPool& pool, int64_t amount) {
  for (Stat* stat : {&array[0], &array[pool.small ? 1 : 2]}) {
    if (amount >= 0) {
      stat->increase(amount);
    } else {
      stat->decrease(-amount);
    }
  }
}

size_t CachingAllocator::round(size_t bytes) const {
  if (bytes < kMinBlock) return kMinBlock;
  for (const auto& [up_to, divisions] : config_.roundup_power2) {
    if (bytes > up_to) continue;
    if (divisions > 1 && bytes > kMinBlock * divisions) {
      const size_t floor = std::bit_floor(bytes);
      return round_up(bytes, std::max(floor / divisions, kMinBlock));
    }
    break;
  }
  return round_up(bytes, kMinBlock);
}

BlockPool& CachingAllocator::pool_for(size_t size, StreamId stream) {
  const bool small = size <= kSmallLimit;
  for (auto it = active_filters_.rbegin(); it != active_filters_.rend(); ++it) {
    if (!it->second(stream)) continue;
    Private& own = *private_pools_.at(it->first);
    return small ? own.small : own.large;
  }
  return small ? small_ : large_;
}

Block* CachingAllocator::allocate(size_t bytes, StreamId stream) {
  const Session session(*this, true, false);
  if (allocation_fault && allocation_fault(device_, bytes)) out_of_memory(bytes);
  if (bytes > (size_t{1} << 60)) out_of_memory(bytes);
  if (auto plugin = plugin_for(stream)) return allocate_by_plugin(std::move(plugin), bytes, stream);
  const size_t size = round(bytes);
  BlockPool& pool = pool_for(size, stream);
  if (!deferred_.empty()) finish_deferred();
  Block* block = take_recent(pool, size, stream);
  if (block == nullptr) {
    flush_recent();
    block = take_free(pool, size, stream);
    if (block == nullptr) block = grow(pool, size, stream);
    if (should_split(block, size)) split(block, size);
  }
  block->allocated = true;
  slot_of(*block->segment, block->ptr) = block;
  block->requested = bytes;
  block->idle_rounds = 0;
  block->unsafe = false;
  block->data = 0;
  block->context = context_;
  count(stats_.allocation, pool, 1);
  count(stats_.allocated_bytes, pool, static_cast<int64_t>(block->size));
  count(stats_.requested_bytes, pool, static_cast<int64_t>(bytes));
  count(stats_.active, pool, 1);
  count(stats_.active_bytes, pool, static_cast<int64_t>(block->size));
  if (block->size >= config_.max_split_size) stats_.oversize_allocations.increase(1);
  note(MemoryEvent::Alloc, block->ptr, block->size, stream);
  return block;
}

Block* CachingAllocator::take_free(BlockPool& pool, size_t size, StreamId stream) {
  if (config_.garbage_collection_threshold > 0) {
    for (Block* block : pool.free) ++block->idle_rounds;
  }
  Block key;
  key.stream = stream;
  key.size = size;
  auto it = pool.free.lower_bound(&key);
  if (it == pool.free.end() || (*it)->stream != stream) return nullptr;
  Block* found = *it;
  // An oversize block serves only oversize requests, and not much smaller ones.
  if (size < config_.max_split_size && found->size >= config_.max_split_size) return nullptr;
  if (size >= config_.max_split_size && found->size >= size + config_.max_non_split_rounding) return nullptr;
  pool.take(found);
  if (found->prev || found->next) {
    count(stats_.inactive_split, pool, -1);
    count(stats_.inactive_split_bytes, pool, -static_cast<int64_t>(found->size));
  }
  return found;
}

Block* CachingAllocator::grow(BlockPool& pool, size_t size, StreamId stream) {
  size_t bytes = size <= kSmallLimit  ? kSmallSegment
                 : size < kLargeLimit ? std::max(config_.large_segment, kLargeLimit)
                                      : round_up(size, kRoundLarge);
  if (config_.page > 0 && size > kSmallLimit) bytes = round_up(size, config_.page);
  if (!config_.caching) bytes = round_up(size, kMinBlock);
  if (config_.garbage_collection_threshold > 0) collect_garbage(bytes);
  auto attempt = [&]() -> Block* {
    const size_t used = static_cast<size_t>(stats_.reserved_bytes[0].current);
    if (config_.expandable_segments && config_.caching) return extend(pool, size, stream);
    if (used + bytes > limit()) return nullptr;
    return new_segment(pool, bytes, bytes, stream, false);
  };
  Block* block = attempt();
  if (block == nullptr && release_oversize(bytes)) block = attempt();
  if (block == nullptr) {
    ++stats_.num_alloc_retries;
    ++stats_.num_sync_all_streams;
    finish_deferred();
    release_segments(small_);
    release_segments(large_);
    for (auto& [id, own] : private_pools_) {
      if (own->users == 0) {
        release_segments(own->small);
        release_segments(own->large);
      }
    }
    block = take_free(pool, size, stream);
    if (block == nullptr) block = attempt();
  }
  if (block == nullptr) out_of_memory(size);
  return block;
}

Block* CachingAllocator::new_segment(BlockPool& pool, size_t bytes, size_t reserve, StreamId stream, bool expandable) {
  char* base = reserve_pages(reserve);
  if (base == nullptr) return nullptr;
  auto segment = std::make_unique<Segment>();
  segment->base = base;
  segment->size = bytes;
  segment->reserved = reserve;
  segment->pool = &pool;
  segment->stream = stream;
  segment->expandable = expandable;
  segment->slots = static_cast<Block**>(lazy_pages(slots_bytes(*segment)));
  if (segment->slots == nullptr) {
    release_pages(base, reserve);
    return nullptr;
  }
  enter_segment(*segment);
  segment->context = context_;
  Block* block = new_block(segment.get(), pool, stream, base, bytes);
  segment->first = block;
  segments_.emplace(base, std::move(segment));
  ++stats_.num_device_alloc;
  count(stats_.segment, pool, 1);
  count(stats_.reserved_bytes, pool, static_cast<int64_t>(bytes));
  if (bytes >= config_.max_split_size) stats_.oversize_segments.increase(1);
  note(expandable ? MemoryEvent::SegmentMap : MemoryEvent::SegmentAlloc, base, bytes, stream);
  return block;
}

// One address range per pool and stream that grows at its end, so that free space stays in one piece.
Block* CachingAllocator::extend(BlockPool& pool, size_t size, StreamId stream) {
  const size_t step = pool.small ? kSmallSegment : config_.large_segment;
  const size_t used = static_cast<size_t>(stats_.reserved_bytes[0].current);
  for (auto& [base, segment] : segments_) {
    if (!segment->expandable || segment->pool != &pool || segment->stream != stream) continue;
    Block* last = segment->first;
    while (last->next) last = last->next;
    const bool free_tail = last->idle;
    const size_t have = free_tail ? last->size : 0;
    const size_t more = round_up(size - std::min(have, size), step);
    if (segment->size + more > segment->reserved || used + more > limit()) continue;
    if (free_tail) {
      pool.take(last);
      if (last->prev) {
        count(stats_.inactive_split, pool, -1);
        count(stats_.inactive_split_bytes, pool, -static_cast<int64_t>(last->size));
      }
      last->size += more;
    } else {
      Block* tail = new_block(segment.get(), pool, stream, last->ptr + last->size, more);
      tail->prev = last;
      last->next = tail;
      last = tail;
    }
    segment->size += more;
    ++stats_.num_device_alloc;
    count(stats_.reserved_bytes, pool, static_cast<int64_t>(more));
    note(MemoryEvent::SegmentMap, segment->base + segment->size - more, more, stream);
    return last;
  }
  const size_t bytes = round_up(size, step);
  if (used + bytes > limit()) return nullptr;
  return new_segment(pool, bytes, std::max(capacity_ + capacity_ / 8, bytes), stream, true);
}

bool CachingAllocator::should_split(const Block* block, size_t size) const {
  const size_t rest = block->size - size;
  if (!config_.caching) return false;
  if (block->pool->small || block->segment->expandable) return rest >= kMinBlock;
  return size < config_.max_split_size && rest > kSmallLimit;
}

void CachingAllocator::split(Block* block, size_t size) {
  Block* rest = new_block(block->segment, *block->pool, block->stream, block->ptr + size, block->size - size);
  rest->prev = block;
  rest->next = block->next;
  if (rest->next) rest->next->prev = rest;
  block->next = rest;
  block->size = size;
  rest->pool->insert(rest);
  count(stats_.inactive_split, *rest->pool, 1);
  count(stats_.inactive_split_bytes, *rest->pool, static_cast<int64_t>(rest->size));
}

}  // namespace softnpu
