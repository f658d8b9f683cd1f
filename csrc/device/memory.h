// Device memory: a caching allocator over lazily committed host pages, one allocator per device.
//
// The scheme is the one CUDA users know: requests are rounded to 512 bytes, small (<= 1 MiB) and large requests
// come from separate pools, a pool hands out the best-fitting free block of the same stream and splits it, free
// neighbors merge, whole free segments go back on pressure. Pages are reserved, not committed: only bytes that a
// program touches cost host memory, while every reserved byte counts against the chip's capacity.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace softnpu {

using StreamId = int64_t;
using PoolId = std::pair<uint64_t, uint64_t>;  // as c10::MempoolId_t

constexpr size_t kMinBlock = 512;
constexpr size_t kSmallLimit = size_t{1} << 20;
constexpr size_t kSmallSegment = size_t{2} << 20;
constexpr size_t kLargeSegment = size_t{20} << 20;
constexpr size_t kLargeLimit = size_t{10} << 20;
constexpr size_t kRoundLarge = size_t{2} << 20;

struct Stat {
  int64_t current = 0, peak = 0, allocated = 0, freed = 0;
  void increase(int64_t amount);
  void decrease(int64_t amount);
  void reset_peak() { peak = current; }
  void reset_accumulated() { allocated = freed = 0; }
};
using StatArray = std::array<Stat, 3>;  // all, small pool, large pool

struct MemoryStats {
  StatArray allocation, segment, active, inactive_split;
  StatArray allocated_bytes, reserved_bytes, active_bytes, inactive_split_bytes, requested_bytes;
  Stat oversize_allocations, oversize_segments;
  int64_t num_alloc_retries = 0, num_ooms = 0, num_sync_all_streams = 0;
  int64_t num_device_alloc = 0, num_device_free = 0;
};

// What PYTORCH_NPU_ALLOC_CONF sets; parsed in Python, where the messages are.
struct AllocatorConfig {
  size_t max_split_size = SIZE_MAX;
  double garbage_collection_threshold = 0;
  bool expandable_segments = false;
  bool caching = true;  // PYTORCH_NO_NPU_MEMORY_CACHING
  size_t large_segment = kLargeSegment;
  std::vector<std::pair<size_t, size_t>> roundup_power2;  // up to this size -> divisions
  size_t max_non_split_rounding = kLargeSegment;  // how much larger a block may be that serves an oversize request
  size_t page = 0;                                // large segments are whole pages of this size (page_size:1g)
};

// A user's allocator (NPUPluggableAllocator) in the device's place: bytes, device, stream.
struct Plugin {
  std::function<void*(size_t, int, int64_t)> allocate;
  std::function<void(void*, size_t, int, int64_t)> free;
};

class OutOfMemory : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class CachingAllocator;
struct Segment;
struct BlockPool;

struct Block {
  CachingAllocator* allocator = nullptr;
  Segment* segment = nullptr;
  BlockPool* pool = nullptr;
  StreamId stream = 0;
  char* ptr = nullptr;
  size_t size = 0, requested = 0;
  Block *prev = nullptr, *next = nullptr;
  bool allocated = false;
  bool idle = false;                    // in its pool's set of free blocks
  int64_t idle_rounds = 0;              // garbage collection age
  std::vector<StreamId> other_streams;  // record_stream
  std::shared_ptr<void> context;        // where it was allocated, while history is recorded
  bool unsafe = false;                  // its bytes were lost in a fault and not written again since
  uint8_t data = 0;                     // what a run for shapes alone knows of its bytes (torch/plan/values.h)
  std::shared_ptr<Plugin> plugin;       // set: the bytes are a user's allocator's, and there is no segment
};

struct BlockOrder {
  bool operator()(const Block* a, const Block* b) const;
};

struct BlockPool {
  bool small = false;
  PoolId owner{0, 0};  // {0, 0}: the device's common pool
  std::set<Block*, BlockOrder> free;
  std::set<Block*, BlockOrder>::node_type spare;  // of the last block taken: the next one given back needs no malloc

  void insert(Block* block);
  void take(Block* block);
};

struct Segment {
  char* base = nullptr;
  size_t size = 0;      // bytes that count as reserved
  size_t reserved = 0;  // bytes of address space (more than size in an expandable segment)
  Block* first = nullptr;
  BlockPool* pool = nullptr;
  StreamId stream = 0;
  bool expandable = false;
  Block** slots = nullptr;  // by 512-byte step: the allocated block that starts there
  std::shared_ptr<void> context;
};

// The allocated block that starts at an address of any device, or nullptr; no lock, two loads.
Block* block_at(const void* start) noexcept;

struct BlockInfo {
  uintptr_t address;
  size_t size, requested;
  bool allocated, active;
  std::shared_ptr<void> context;
};

struct SegmentInfo {
  uintptr_t address;
  size_t total, allocated, active, requested;
  StreamId stream;
  bool small, expandable;
  PoolId pool;
  std::vector<BlockInfo> blocks;
};

struct MemoryEvent {
  enum Action {
    Alloc,
    FreeRequested,
    FreeCompleted,
    SegmentAlloc,
    SegmentFree,
    SegmentMap,
    SegmentUnmap,
    Snapshot,
    Oom
  };
  Action action;
  uintptr_t address;
  size_t size;
  StreamId stream;
  int64_t time_ns;
  std::shared_ptr<void> context;
};

// The memory of one device.
class CachingAllocator {
 public:
  CachingAllocator(int device, size_t capacity) : device_(device), capacity_(capacity) {}
  CachingAllocator(const CachingAllocator&) = delete;

  Block* allocate(size_t bytes, StreamId stream);
  void free(Block* block);
  void record_stream(Block* block, StreamId stream);
  void erase_stream(Block* block, StreamId stream);
  void empty_cache(PoolId pool = {0, 0});

  // Private pools: while a filter is pushed, allocations it accepts come from that pool.
  using Filter = std::function<bool(StreamId)>;
  void begin_pool(PoolId pool, Filter filter);
  void end_pool(PoolId pool);
  void retain_pool(PoolId pool);
  void release_pool(PoolId pool);

  // A user's allocator for everything, or for one private pool; nullptr ends it. Blocks it made stay its own.
  void set_plugin(std::shared_ptr<Plugin> plugin);
  void set_pool_plugin(PoolId pool, std::shared_ptr<Plugin> plugin);
  void mark_all_unsafe();

  MemoryStats stats();
  void reset_peak();
  void reset_accumulated();
  std::vector<SegmentInfo> segments();
  Block* find(const void* address);  // the allocated block that holds the address
  bool owns(const void* address);

  void set_fraction(double fraction);
  double fraction() const { return fraction_; }
  size_t capacity() const { return capacity_; }
  size_t reserved();
  size_t limit() const { return static_cast<size_t>(static_cast<double>(capacity_) * fraction_); }

  using ContextFn = std::function<std::shared_ptr<void>()>;
  void record_history(bool on, size_t most, ContextFn context, bool context_on_free);
  std::vector<MemoryEvent> history();

  void configure(const AllocatorConfig& config);
  const AllocatorConfig& config() const { return config_; }
  int device() const { return device_; }

  // Set by the floor above: whether work of this device still waits on the stream, and fault injection.
  static std::function<bool(int device, StreamId)> stream_busy;
  static std::function<bool(int device, size_t bytes)> allocation_fault;

 private:
  struct Private {
    BlockPool small, large;
    int users = 0;
    bool retired = false;
    std::shared_ptr<Plugin> plugin;
  };

  std::shared_ptr<Plugin> plugin_for(StreamId stream);
  Block* allocate_by_plugin(std::shared_ptr<Plugin> plugin, size_t bytes, StreamId stream);
  void free_by_plugin(Block* block);

  // The lock of every public call. What it may run of the interpreter stays outside the lock: where a call comes
  // from is asked before it, and contexts that fell out of use are released after it.
  class Session {
   public:
    // `flushes`: recently freed blocks go back to their pool first, so that what the call sees is as if there were
    // none.
    explicit Session(CachingAllocator& allocator, bool notes = false, bool flushes = true);
    ~Session();
    Session(const Session&) = delete;

   private:
    CachingAllocator& allocator_;
    std::shared_ptr<void> context_, outer_;
    std::vector<std::shared_ptr<void>> unused_;
  };
  std::shared_ptr<void> gather();
  void release_context(std::shared_ptr<void>& context);

  BlockPool& pool_for(size_t size, StreamId stream);
  size_t round(size_t bytes) const;
  Block* take_free(BlockPool& pool, size_t size, StreamId stream);
  Block* grow(BlockPool& pool, size_t size, StreamId stream);
  Block* extend(BlockPool& pool, size_t size, StreamId stream);
  Block* new_segment(BlockPool& pool, size_t bytes, size_t reserve, StreamId stream, bool expandable);
  bool should_split(const Block* block, size_t size) const;
  void split(Block* block, size_t size);
  void complete_free(Block* block);
  void return_to_pool(Block* block);
  void keep_recent(Block* block);
  Block* take_recent(const BlockPool& pool, size_t size, StreamId stream);
  void flush_recent();
  void drop_retired_pools();
  void finish_deferred();
  bool release_oversize(size_t size);
  void collect_garbage(size_t wanted);
  bool release_segments(BlockPool& pool);
  void release(Segment* segment);
  void note(MemoryEvent::Action action, const void* address, size_t size, StreamId stream);
  void count(StatArray& array, const BlockPool& pool, int64_t amount);
  [[noreturn]] void out_of_memory(size_t wanted);
  Block* merge(Block* block, Block* neighbor);
  Block* new_block(Segment* segment, BlockPool& pool, StreamId stream, char* at, size_t size);
  void drop(Block* block);

  const int device_;
  const size_t capacity_;
  double fraction_ = 1.0;
  AllocatorConfig config_;
  std::recursive_mutex mutex_;
  MemoryStats stats_;
  BlockPool small_{true, {0, 0}, {}}, large_{false, {0, 0}, {}};
  std::shared_ptr<Plugin> plugin_;
  std::map<PoolId, std::unique_ptr<Private>> private_pools_;
  std::vector<PoolId> retired_pools_;  // those that may be empty now
  std::vector<std::pair<PoolId, Filter>> active_filters_;
  std::map<char*, std::unique_ptr<Segment>> segments_;
  std::vector<Block*> spare_blocks_;
  std::vector<Block*> deferred_;    // freed while another stream still uses them
  std::array<Block*, 4> recent_{};  // the small blocks freed last: the next request of that size needs no search
  size_t recent_next_ = 0;
  std::atomic<bool> history_on_ = false, context_on_free_ = false;
  size_t history_most_ = 0;
  std::mutex context_mutex_;
  std::shared_ptr<ContextFn> context_fn_;  // guarded by context_mutex_
  std::shared_ptr<void> context_;          // of the call that holds the lock
  std::vector<std::shared_ptr<void>> unused_contexts_;
  std::vector<MemoryEvent> history_;
  size_t history_next_ = 0;
};

std::string format_size(size_t bytes);

}  // namespace softnpu
