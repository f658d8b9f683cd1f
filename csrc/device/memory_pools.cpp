// Private pools, users' allocators, and blocks by address.
#include <algorithm>
#include <atomic>

#include "device/memory.h"
#include "device/pages.h"

namespace softnpu {

namespace {

// Blocks of users' allocators, by address; they stand anywhere, so the segment table does not know them.
struct PluginBlocks {
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

PluginBlocks& plugin_blocks() {
  static auto* all = new PluginBlocks;
  return *all;
}

}  // namespace

Block* block_at(const void* start) noexcept {
  if (start == nullptr) return nullptr;
  Segment* segment = segment_at(start);
  if (segment == nullptr || start >= segment->base + segment->reserved) {
    Block* other = plugin_blocks().holding(start);
    return other != nullptr && other->ptr == start ? other : nullptr;
  }
  Block* block = slot_of(*segment, static_cast<const char*>(start));
  return block != nullptr && block->ptr == start ? block : nullptr;
}

std::shared_ptr<Plugin> CachingAllocator::plugin_for(StreamId stream) {
  for (auto it = active_filters_.rbegin(); it != active_filters_.rend(); ++it) {
    if (it->second(stream)) return private_pools_.at(it->first)->plugin;
  }
  return plugin_;
}

void CachingAllocator::set_plugin(std::shared_ptr<Plugin> plugin) {
  const Session session(*this);
  plugin_ = std::move(plugin);
}

void CachingAllocator::set_pool_plugin(PoolId id, std::shared_ptr<Plugin> plugin) {
  const Session session(*this);
  private_pools_.at(id)->plugin = std::move(plugin);
}

Block* CachingAllocator::allocate_by_plugin(std::shared_ptr<Plugin> plugin, size_t bytes, StreamId stream) {
  auto* at = static_cast<char*>(plugin->allocate(bytes, device_, stream));
  if (at == nullptr) out_of_memory(bytes);
  auto* block = new Block;
  block->allocator = this;
  block->stream = stream;
  block->ptr = at;
  block->size = block->requested = bytes;
  block->allocated = true;
  block->plugin = std::move(plugin);
  std::lock_guard<std::mutex> lock(plugin_blocks().mutex);
  plugin_blocks().blocks[at] = block;
  ++plugin_blocks().count;
  return block;
}

void CachingAllocator::free_by_plugin(Block* block) {
  {
    std::lock_guard<std::mutex> lock(plugin_blocks().mutex);
    plugin_blocks().blocks.erase(block->ptr);
    --plugin_blocks().count;
  }
  block->plugin->free(block->ptr, block->size, device_, block->stream);
  delete block;
}

void CachingAllocator::mark_all_unsafe() {
  const Session session(*this);
  for (auto& [base, segment] : segments_) {
    for (Block* block = segment->first; block; block = block->next) block->unsafe = block->allocated;
  }
}

void CachingAllocator::begin_pool(PoolId id, Filter filter) {
  const Session session(*this);
  retain_pool(id);
  active_filters_.emplace_back(id, std::move(filter));
}

void CachingAllocator::end_pool(PoolId id) {
  const Session session(*this);
  const auto last = std::find_if(active_filters_.rbegin(), active_filters_.rend(),
                                 [&](const auto& entry) { return entry.first == id; });
  if (last == active_filters_.rend()) throw std::runtime_error("this memory pool is not in use");
  active_filters_.erase(std::next(last).base());
}

void CachingAllocator::retain_pool(PoolId id) {
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

void CachingAllocator::release_pool(PoolId id) {
  const Session session(*this);
  const auto found = private_pools_.find(id);
  if (found == private_pools_.end()) return;
  Private& own = *found->second;
  if (--own.users > 0) return;
  own.retired = true;
  release_segments(own.small);
  release_segments(own.large);
  retired_pools_.push_back(id);
  drop_retired_pools();
}

// Private pools that nobody uses any more go with their last segment.
void CachingAllocator::drop_retired_pools() {
  for (const PoolId& id : retired_pools_) {
    const auto found = private_pools_.find(id);
    if (found == private_pools_.end() || !found->second->retired) continue;
    const bool in_use = std::any_of(segments_.begin(), segments_.end(),
                                    [&](const auto& entry) { return entry.second->pool->owner == id; });
    if (!in_use) private_pools_.erase(found);
  }
  retired_pools_.clear();
}

Block* CachingAllocator::find(const void* address) {
  if (Block* other = plugin_blocks().holding(address)) return other->allocator == this ? other : nullptr;
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

bool CachingAllocator::owns(const void* address) {
  const Session session(*this);
  char* at = static_cast<char*>(const_cast<void*>(address));
  auto it = segments_.upper_bound(at);
  if (it == segments_.begin()) return false;
  --it;
  return at < it->second->base + it->second->size;
}

}  // namespace softnpu
