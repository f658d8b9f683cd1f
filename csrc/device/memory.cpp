#include "device/memory.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdio>
#include <limits>
#include <tuple>

#include "device/pages.h"

namespace softnpu {

std::function<bool(int, StreamId)> Arena::stream_busy;
std::function<bool(int, size_t)> Arena::allocation_fault;

namespace {

// Blocks of users' allocators, by address; they stand anywhere, so the segment table does not know them.
struct Foreign {
  std::atomic<size_t> count{0};
  std::mutex mutex;
  std::map<const char*, Block*> blocks;
  Block* holding(const void* address) {
    if (count.load(std::memory_order_acquire) == 0) return nullptr;
    std::lock_guard<std::mutex> lock(mutex);
    const char* at = static_cast<const char*>(address);
    auto it = blocks.upper_bound(at);
    if (it == blocks.begin()) return nullptr;
    --it;
    return at < it->first + it->second->size ? it->second : nullptr;
  }
};

Foreign& foreign() {
  static auto* all = new Foreign;
  return *all;
}

}  // namespace

bool BlockOrder::operator()(const Block* a, const Block* b) const {
  return std::tie(a->stream, a->size, a->ptr) < std::tie(b->stream, b->size, b->ptr);
}

void BlockPool::give(Block* block) {
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

Block* Arena::new_block(Segment* segment, BlockPool& pool, StreamId stream, char* at, size_t size) {
  Block* block = nullptr;
  if (spare_blocks_.empty()) {
    block = new Block;
  } else {
    block = spare_blocks_.back();
    spare_blocks_.pop_back();
  }
  block->arena = this;
  block->segment = segment;
  block->pool = &pool;
  block->stream = stream;
  block->ptr = at;
  block->size = size;
  return block;
}

void Arena::drop(Block* block) {
  if (spare_blocks_.size() >= 256) {
    delete block;
    return;
  }
  *block = Block{};
  spare_blocks_.push_back(block);
}

Block* block_at(const void* start) noexcept {
  if (start == nullptr) return nullptr;
  Segment* segment = segment_at(start);
  if (segment == nullptr || start >= segment->base + segment->reserved) {
    Block* other = foreign().holding(start);
    return other != nullptr && other->ptr == start ? other : nullptr;
  }
  Block* block = slot_of(*segment, static_cast<const char*>(start));
  return block != nullptr && block->ptr == start ? block : nullptr;
}

void Arena::count(StatArray& array, const BlockPool& pool, int64_t amount) {
  for (Stat* stat : {&array[0], &array[pool.small ? 1 : 2]}) {
    if (amount >= 0) {
      stat->increase(amount);
    } else {
      stat->decrease(-amount);
    }
  }
}

size_t Arena::round(size_t bytes) const {
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

BlockPool& Arena::pool_for(size_t size, StreamId stream) {
  const bool small = size <= kSmallLimit;
  for (auto it = active_filters_.rbegin(); it != active_filters_.rend(); ++it) {
    if (!it->second(stream)) continue;
    Private& own = *private_pools_.at(it->first);
    return small ? own.small : own.large;
  }
  return small ? small_ : large_;
}

Block* Arena::allocate(size_t bytes, StreamId stream) {
  const Session session(*this, true, false);
  if (allocation_fault && allocation_fault(device_, bytes)) out_of_memory(bytes);
  if (bytes > (size_t{1} << 60)) out_of_memory(bytes);
  if (auto plugin = plugin_for(stream)) return allocate_foreign(std::move(plugin), bytes, stream);
  const size_t size = round(bytes);
  BlockPool& pool = pool_for(size, stream);
  if (!deferred_.empty()) finish_deferred();
  Block* block = take_warm(pool, size, stream);
  if (block == nullptr) {
    settle();
    block = take_free(pool, size, stream);
    if (block == nullptr) block = grow(pool, size, stream);
    if (should_split(block, size)) split(block, size);
  }
  block->allocated = true;
  slot_of(*block->segment, block->ptr) = block;
  block->requested = bytes;
  block->idle_rounds = 0;
  block->unsafe = false;
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

Block* Arena::take_free(BlockPool& pool, size_t size, StreamId stream) {
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

Block* Arena::grow(BlockPool& pool, size_t size, StreamId stream) {
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

Block* Arena::new_segment(BlockPool& pool, size_t bytes, size_t reserve, StreamId stream, bool expandable) {
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
Block* Arena::extend(BlockPool& pool, size_t size, StreamId stream) {
  const size_t step = pool.small ? kSmallSegment : kLargeSegment;
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

bool Arena::should_split(const Block* block, size_t size) const {
  const size_t rest = block->size - size;
  if (!config_.caching) return false;
  if (block->pool->small || block->segment->expandable) return rest >= kMinBlock;
  return size < config_.max_split_size && rest > kSmallLimit;
}

void Arena::split(Block* block, size_t size) {
  Block* rest = new_block(block->segment, *block->pool, block->stream, block->ptr + size, block->size - size);
  rest->prev = block;
  rest->next = block->next;
  if (rest->next) rest->next->prev = rest;
  block->next = rest;
  block->size = size;
  rest->pool->give(rest);
  count(stats_.inactive_split, *rest->pool, 1);
  count(stats_.inactive_split_bytes, *rest->pool, static_cast<int64_t>(rest->size));
}

std::shared_ptr<Plugin> Arena::plugin_for(StreamId stream) {
  for (auto it = active_filters_.rbegin(); it != active_filters_.rend(); ++it) {
    if (it->second(stream)) return private_pools_.at(it->first)->plugin;
  }
  return plugin_;
}

void Arena::set_plugin(std::shared_ptr<Plugin> plugin) {
  const Session session(*this);
  plugin_ = std::move(plugin);
}

void Arena::set_pool_plugin(PoolId id, std::shared_ptr<Plugin> plugin) {
  const Session session(*this);
  private_pools_.at(id)->plugin = std::move(plugin);
}

Block* Arena::allocate_foreign(std::shared_ptr<Plugin> plugin, size_t bytes, StreamId stream) {
  auto* at = static_cast<char*>(plugin->allocate(bytes, device_, stream));
  if (at == nullptr) out_of_memory(bytes);
  auto* block = new Block;
  block->arena = this;
  block->stream = stream;
  block->ptr = at;
  block->size = block->requested = bytes;
  block->allocated = true;
  block->plugin = std::move(plugin);
  std::lock_guard<std::mutex> lock(foreign().mutex);
  foreign().blocks[at] = block;
  ++foreign().count;
  return block;
}

void Arena::free_foreign(Block* block) {
  {
    std::lock_guard<std::mutex> lock(foreign().mutex);
    foreign().blocks.erase(block->ptr);
    --foreign().count;
  }
  block->plugin->free(block->ptr, block->size, device_, block->stream);
  delete block;
}

void Arena::mark_all_unsafe() {
  const Session session(*this);
  for (auto& [base, segment] : segments_) {
    for (Block* block = segment->first; block; block = block->next) block->unsafe = block->allocated;
  }
}

void Arena::free(Block* block) {
  if (block->plugin) return free_foreign(block);
  const Session session(*this, false, false);
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
  give_back(block);
}

void Arena::finish_deferred() {
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
    give_back(block);
  }
  deferred_ = std::move(waiting);
}

void Arena::give_back(Block* block) {
  BlockPool& pool = *block->pool;
  count(stats_.active, pool, -1);
  count(stats_.active_bytes, pool, -static_cast<int64_t>(block->size));
  note(MemoryEvent::FreeCompleted, block->ptr, block->size, block->stream);
  let_go(block->context);
  if (&pool == &small_ && config_.caching && config_.garbage_collection_threshold == 0) {
    keep_warm(block);
  } else {
    return_to_pool(block);
  }
}

void Arena::keep_warm(Block* block) {
  Block*& place = warm_[warm_next_++ % warm_.size()];
  if (place != nullptr) return_to_pool(place);
  place = block;
}

Block* Arena::take_warm(const BlockPool& pool, size_t size, StreamId stream) {
  for (Block*& place : warm_) {
    if (place == nullptr || place->size != size || place->stream != stream || place->pool != &pool) continue;
    return std::exchange(place, nullptr);
  }
  return nullptr;
}

void Arena::settle() {
  for (Block*& place : warm_) {
    if (place != nullptr) return_to_pool(std::exchange(place, nullptr));
  }
}

void Arena::return_to_pool(Block* block) {
  BlockPool& pool = *block->pool;
  block = merge(block, block->prev);
  block = merge(block, block->next);
  block->requested = 0;
  pool.give(block);
  if (block->prev || block->next) {
    count(stats_.inactive_split, pool, 1);
    count(stats_.inactive_split_bytes, pool, static_cast<int64_t>(block->size));
  }
  const auto own = private_pools_.find(pool.owner);
  const bool abandoned = own != private_pools_.end() && own->second->retired;
  if (!config_.caching || abandoned) release_segments(pool);
}

Block* Arena::merge(Block* block, Block* other) {
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

void Arena::record_stream(Block* block, StreamId stream) {
  const Session session(*this);
  auto& others = block->other_streams;
  if (stream == block->stream || std::find(others.begin(), others.end(), stream) != others.end()) return;
  others.push_back(stream);
}

void Arena::erase_stream(Block* block, StreamId stream) {
  const Session session(*this);
  std::erase(block->other_streams, stream);
}

bool Arena::release_segments(BlockPool& pool) {
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

void Arena::release(Segment* segment) {
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
  let_go(segment->context);
  drop(segment->first);
  segments_.erase(segment->base);
}

bool Arena::release_oversize(size_t size) {
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

void Arena::collect_garbage(size_t wanted) {
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

void Arena::empty_cache(PoolId id) {
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

void Arena::begin_pool(PoolId id, Filter filter) {
  const Session session(*this);
  retain_pool(id);
  active_filters_.emplace_back(id, std::move(filter));
}

void Arena::end_pool(PoolId id) {
  const Session session(*this);
  const auto last = std::find_if(active_filters_.rbegin(), active_filters_.rend(),
                                 [&](const auto& entry) { return entry.first == id; });
  if (last == active_filters_.rend()) throw std::runtime_error("this memory pool is not in use");
  active_filters_.erase(std::next(last).base());
}

void Arena::retain_pool(PoolId id) {
  const Session session(*this);
  auto& own = private_pools_[id];
  if (!own) {
    own = std::make_unique<Private>();
    own->small = BlockPool{true, id, {}};
    own->large = BlockPool{false, id, {}};
  }
  own->retired = false;
  ++own->users;
}

void Arena::release_pool(PoolId id) {
  const Session session(*this);
  const auto found = private_pools_.find(id);
  if (found == private_pools_.end()) return;
  Private& own = *found->second;
  if (--own.users > 0) return;
  own.retired = true;
  release_segments(own.small);
  release_segments(own.large);
  const bool in_use = std::any_of(segments_.begin(), segments_.end(),
                                  [&](const auto& entry) { return entry.second->pool->owner == id; });
  if (!in_use) private_pools_.erase(found);
}

Block* Arena::find(const void* address) {
  if (Block* other = foreign().holding(address)) return other->arena == this ? other : nullptr;
  const Session session(*this);
  char* at = static_cast<char*>(const_cast<void*>(address));
  auto it = segments_.upper_bound(at);
  if (it == segments_.begin()) return nullptr;
  --it;
  if (at >= it->second->base + it->second->size) return nullptr;
  for (Block* block = it->second->first; block; block = block->next) {
    if (at >= block->ptr && at < block->ptr + block->size) return block->allocated ? block : nullptr;
  }
  return nullptr;
}

bool Arena::owns(const void* address) {
  const Session session(*this);
  char* at = static_cast<char*>(const_cast<void*>(address));
  auto it = segments_.upper_bound(at);
  if (it == segments_.begin()) return false;
  --it;
  return at < it->second->base + it->second->size;
}

}  // namespace softnpu
