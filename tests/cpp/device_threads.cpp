// csrc/device under many threads, without PyTorch and Python: built with -fsanitize=thread by `make tsan` and
// tests/cpp/test_threads.py. The first argument says how many rounds each thread goes.
//
// Every public function that threads may call at the same time is called by several at once. What must hold besides the
// absence of races is asserted: no two live blocks overlap, queued work runs in order and once, records are not lost.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "device/device.h"
#include "device/faults.h"
#include "device/trace.h"

using namespace softnpu;

namespace {

constexpr int kThreads = 4;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::exit(1);
}

template <class Body>
void on_threads(Body body) {
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) threads.emplace_back([=] { body(t); });
  for (auto& thread : threads) thread.join();
}

// Blocks that one thread allocates and another one frees.
class Exchange {
 public:
  Block* swap(Block* mine, size_t at) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(held_[at % held_.size()], mine);
  }
  std::vector<Block*> all() { return {held_.begin(), held_.end()}; }

 private:
  std::mutex mutex_;
  std::array<Block*, 64> held_{};
};

void allocate_and_free(int rounds) {
  CachingAllocator& memory = device(0).memory;
  Exchange exchange;
  on_threads([&](int t) {
    std::mt19937 chance(static_cast<unsigned>(t));
    for (int i = 0; i < rounds; ++i) {
      const size_t bytes = chance() % 5 == 0 ? 1 + chance() % (4 << 20) : 1 + chance() % 4096;
      Block* block = nullptr;
      try {
        block = memory.allocate(bytes, chance() % 3);
      } catch (const OutOfMemory&) {
        continue;  // another thread has lowered the limit, or injected it
      }
      require(block_at(block->ptr) == block, "block_at finds a block by its address");
      std::memset(block->ptr, t, std::min<size_t>(bytes, 64));
      if (chance() % 8 == 0) memory.record_stream(block, chance() % 3);
      require(block->ptr[0] == t, "no other block has these bytes");
      if (Block* other = exchange.swap(block, chance())) memory.free(other);
      switch (chance() % 64) {
        case 0:
          memory.empty_cache();
          break;
        case 1:
          require(memory.stats().allocated_bytes[0].current >= 0, "bytes are counted");
          break;
        case 2:
          memory.segments();
          break;
        case 3:
          memory.set_fraction(chance() % 2 == 0 ? 0.5 : 1.0);
          break;
        case 4:
          memory.record_history(chance() % 2 == 0, 100, [] { return std::make_shared<int>(1); }, true);
          break;
        case 5:
          memory.history();
          break;
        case 6:
          Faults::all().fail_allocation(0, 3);
          break;
        case 7:
          memory.reset_peak();
          break;
        case 8:
          memory.find(block_at(block->ptr) ? nullptr : &chance);
          break;
        default:
          break;
      }
    }
  });
  memory.set_fraction(1.0);
  Faults::all().clear();
  for (Block* block : exchange.all()) {
    if (block != nullptr) memory.free(block);
  }
  memory.empty_cache();
  require(memory.stats().allocated_bytes[0].current == 0, "every byte was given back");
}

void private_pools(int rounds) {
  CachingAllocator& memory = device(1).memory;
  on_threads([&](int t) {
    const PoolId pool{0, static_cast<uint64_t>(t + 1)};
    for (int i = 0; i < rounds; ++i) {
      const auto own = std::this_thread::get_id();
      memory.begin_pool(pool, [own](StreamId) { return std::this_thread::get_id() == own; });
      Block* inside = memory.allocate(1000, 0);
      memory.end_pool(pool);
      Block* outside = memory.allocate(1000, 0);
      memory.free(inside);
      memory.release_pool(pool);
      memory.free(outside);
      if (i % 16 == 0) memory.empty_cache(pool);
    }
  });
  memory.empty_cache();
  require(memory.stats().allocated_bytes[0].current == 0, "private pools give everything back");
}

// Two threads fill a blocked stream, the others unblock it.
void queues(int rounds) {
  Queues& all = Queues::all();
  Queues::others_alive = [] { return true; };
  for (int round = 0; round < rounds; ++round) {
    std::array<SignalPtr, kThreads> signals;
    for (auto& signal : signals) signal = std::make_shared<Signal>("a test");
    std::array<std::vector<int>, kThreads> ran;  // by stream; the stream's own order keeps it safe
    for (int t = 0; t < kThreads; ++t) all.wait(0, t + 1, signals[static_cast<size_t>(t)]);
    on_threads([&](int t) {
      const auto mine = static_cast<size_t>(t);
      for (int i = 0; i < 5; ++i) {
        all.launch(0, t + 1, [&, mine, i] {
          ran[mine].push_back(i);
          return AnyOf{};
        });
      }
      auto event = std::make_shared<Event>();
      record_event(event, 0, t + 1, true);
      all.signal(signals[(mine + 1) % kThreads]);
      all.wait_for_stream(0, t + 1);
      all.blocked(0, t + 1);
      all.device_blocked(0);
    });
    for (const auto& one : ran) require(one == std::vector<int>({0, 1, 2, 3, 4}), "queued work runs in order, once");
  }
  all.wait_for_device(0);
}

void trace_and_faults(int rounds) {
  Trace& trace = Trace::all();
  trace.start(true, static_cast<size_t>(rounds) * kThreads);
  std::atomic<size_t> seen{0};
  on_threads([&](int t) {
    for (int i = 0; i < rounds; ++i) {
      TaskRecord record;
      record.id = trace.next_id();
      record.name = "task";
      trace.add(std::move(record));
      if (i % 32 == 0) seen += trace.take().size();
      Faults::all().at_launch(0);
      if (i % 64 == t) Faults::all().raise_at_launch(1, "a fault");
      if (i % 64 == t + 8) Faults::all().restart(1);
      Faults::all().product_is_corrupt(1);
      device(t % 2).streams.next(t % 2 == 0);
      ensure_started();
      set_current_device(t % 2);
      require(current_device() == t % 2, "each thread has its own device");
    }
  });
  trace.stop();
  seen += trace.take().size();
  require(seen + trace.dropped() == static_cast<size_t>(rounds) * kThreads, "no record is lost");
}

}  // namespace

int main(int count, char** arguments) {
  const int rounds = count > 1 ? std::atoi(arguments[1]) : 200;
  CachingAllocator::allocation_fault = [](int index, size_t) { return Faults::all().allocation_fails(index); };
  CachingAllocator::stream_busy = [](int index, StreamId stream) { return Queues::all().blocked(index, stream); };
  configure_devices(2, size_t{1} << 30);
  on_start = [] {};
  allocate_and_free(rounds);
  private_pools(rounds);
  queues(std::max(rounds / 10, 1));
  trace_and_faults(rounds);
  std::puts("no race");
  return 0;
}
